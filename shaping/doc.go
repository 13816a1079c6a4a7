// Package shaping holds requests back until they may go: the queue form of the
// token and the leaky bucket.
//
// Where package limiter refuses what is too much, a [Shaper] lets it wait, first
// in first out, and releases each request when the rate allows. Two numbers
// describe it. Burst is how many may go at once after a quiet time; Queue is
// how many may wait after that. With a burst of 1 it is a leaky bucket: one
// request leaves each 1/rate, however they arrive.
//
// # What it promises
//
//   - In any interval of length t, at most rate × (t + 2 ms) + burst requests
//     are released, whatever the arrivals, cancellations, late timers and
//     changes of the limit (then at the greatest of its rates and bursts). The
//     2 ms are [Slack].
//   - While somebody waits, exactly the rate is released in the long run. A
//     timer that is late by less than Slack is made up for; after a longer
//     stall of the machine the schedule goes on from now, and what became due
//     meanwhile does not leave in a bunch.
//   - Who came first leaves first. Who gives up leaves the queue at that moment,
//     those behind move up, and nobody leaves earlier than the rate allows.
//   - Nobody waits longer than MaxWait, give or take what the timer is late:
//     the wait is known on arrival, and who would have to wait longer is refused
//     then, with the time after which trying again is worth it. (Lowering the
//     rate makes those wait longer who wait already; they are not refused.)
//   - Every request ends in exactly one way: released, refused, or gone. One that
//     is released as its client leaves has used its turn and ends as gone.
//   - Memory is bounded by MaxKeys, and by those who wait.
//
// What it does not promise: that a released request arrives at its destination
// at that spacing, or that the one before has ended. It shapes the outflow of
// this process.
//
// # The parts
//
// A [Pace] says when the next may go. A [Line] adds who that is and how many may
// wait. Both are values without locks that are told the time, so they serve a
// replay in virtual time as they serve live requests. A Shaper keeps one line
// for each key, and adds locks, timers and channels.
package shaping
