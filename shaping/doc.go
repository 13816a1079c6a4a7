// Package shaping holds requests back until they may go: the queue form of the
// token and the leaky bucket, and places at the upstream.
//
// Where package limiter refuses what is too much, a [Shaper] lets it wait and
// releases each request when the rate allows and a place is free. Burst is how
// many may go at once after a quiet time, Queue how many may wait after that,
// MaxInFlight how many that went may be unfinished. With a burst of 1 it is a
// leaky bucket: one request leaves each 1/rate, however they arrive.
//
// # What it promises
//
//  1. Never more than the rate. In any interval of length t, at most
//     rate × (t + 2 ms) + burst requests are released, whatever the arrivals,
//     cancellations, late timers, stalls of the machine, pauses and changes of
//     the limit (then at the greatest of its rates and bursts). The 2 ms are
//     [Slack]. With costs, what is released in t costs at most that, and of the
//     last one what it costs above the burst. Nor are more than MaxInFlight unfinished, but for those that were
//     let go when it was more.
//  2. Never idle in vain. While somebody waits, the rate allows, a place is free
//     and no pause lasts, somebody leaves: at that instant, as far as the timer
//     is in time. One that is late by less than Slack is made up for, so that
//     the long-run rate is exactly the configured one.
//  3. Order. Within a class and a flow, who came first leaves first. A better
//     class goes before, and flows of one class take turns; see [queue.Turns].
//     Who gives up leaves the queue at that moment, those behind move up, and
//     nobody leaves earlier than the rate allows.
//  4. One end. Every request is released, or refused with a reason, or gone, and
//     exactly one of these. One that is released as its client leaves has used
//     its turn and ends as gone. Its place comes back by [Grant.Release],
//     whatever became of it.
//  5. Bounded. No more than Queue wait, nobody longer than MaxWait, nobody past
//     its own deadline. The wait is predicted on arrival, and who would have to
//     wait longer is refused then and not after having waited. RetryAfter is
//     true: who comes then, and is alone, is let in, if places are free in time;
//     with one class, one flow and one cost not a nanosecond earlier. Memory is bounded by MaxKeys, and by those who
//     wait. Who comes back with its [Ticket] is not counted towards Queue: of
//     those there are never more than were let go and are unfinished.
//
// # Costs
//
// A request that costs N takes N intervals of the rate, and one place. It leaves
// when it is its turn and N tokens are there. If the bucket holds fewer than
// that, it leaves when it is full, and what is lacking is paid for by waiting of
// those behind: in a leaky bucket, the next leaves N intervals later. So there is
// no cost that never fits, up to [limiter.MaxPeriod]. A turn between flows is one
// request's, whatever it costs. Where costs differ, the wait that is predicted
// with flows takes the turns of others for as dear as the dearest who waits, and
// a request of a better class that needs more tokens than one that waits may keep
// that from going until it has them. A cost of nothing, Free, only looks: it
// passes at once, by the side of the queue, and takes neither an interval nor a
// place, whether or not there is a pause.
//
// # What it does not promise, and why
//
// After a stall of more than Slack the schedule goes on from now. What became
// due meanwhile does not leave in a bunch, so it is lost to the long-run rate;
// and those who wait are not made to pay for it: the stall does not count as
// waiting. Likewise what waits at the end of a pause goes on at the pace, and
// the tokens from before the pause are not for those who waited in it.
//
// A request that was let into the queue is refused later only for these reasons:
//
//   - Put out (queue_full). The queue was full, and one came that has more right
//     to a place: of a better class than the newest of the lowest, or of a flow
//     that holds at least two places less than the one that holds most.
//   - Overtaken (queue_full). So many of a better class, or of flows that had
//     none waiting, went before it, or stand there with a higher cost, that
//     MaxWait is over.
//   - Slowed down (paused). Rate, burst or places were lowered after it came, or
//     its own deadline passed during a pause, or one ahead that cost more than
//     the burst has to wait for a burst that was raised.
//   - No place (max_wait). How long others hold their places cannot be foreseen,
//     so the prediction takes places to be free in time.
//   - Its own deadline passed while the machine stalled (max_wait).
//
// Lowering Queue puts nobody out: more than Queue wait until the rest has left.
// A change of MaxWait is for those who come after it. Without places, a key may
// be forgotten while a request is unfinished, which then is not counted.
//
// A pause by an operator does not count towards MaxWait. Who comes during one
// with an end is refused if it would have to wait for longer than MaxWait, pause
// included; one without end is taken to end now, as nobody knows better, and
// RetryAfter is too early if it does not. A client's own deadline that is
// shorter does not stop for any pause: it does not stop where the client is.
//
// # Gates
//
// A [Gate] stands before an upstream, behind any number of Shapers. Who waits for
// one that is closed keeps its place, and those for others pass. That counts as
// waiting: whose turn has moved beyond MaxWait is told at once (paused).
//
// # What nobody knows
//
// With MinRate the rate in force is searched for, and with MinInFlight the
// places, by what Grants and Permits report of answers; see [AutoRate] and
// [AutoPlaces]. The promise is then about the highest of each. A predicted wait
// is by what is in force, so it is too long while the search still rises, and
// whoever waits as it falls may be told so (paused). Each key searches for
// itself, and what it found is kept for an hour after it was last used.
//
// # Classes and turns
//
// With PromoteAfter set, no class is starved. A waiter of class Low counts as
// Normal after PromoteAfter and as High after 2 × PromoteAfter. So newcomers
// overtake it for that long at most. From then on it stands before everybody
// who came after it, of whatever class, and waits for no more departures than
// there are waiters who came before it. With flows it is its flow's turns among
// the High ones that it waits for.
//
// Turns between flows bound the wait of a client whatever others do: one that
// has nobody waiting leaves after at most one turn of each other flow of its
// class, so with n flows n intervals, and its k-th waiter after k × n. They
// bound the places too: a flow that holds the most loses its newest to one that
// holds two fewer, so a flood fills what the others leave. Flows only share
// what they ask for (max-min fairness): who asks for less than an equal share
// gets all of it.
//
// The two together have a price. Of a flood's waiters, those that have waited
// for PromoteAfter stand a class above a newcomer that has just come, whoever's
// they are. So where the queue is longer than PromoteAfter, a newcomer of a
// small flow may wait for up to PromoteAfter longer (2 × if it is of class
// Low): until it counts as they do, and has its flow's turn among them.
// Ahead is an upper bound in such a mixture, and with it the predicted wait.
//
// With ShedAbove, requests of lower classes are refused (max_wait) for as long as
// others wait too long: Low when the oldest wait has been above it for ShedAbove,
// Normal after ShedAbove more; see TestShed for the instants. Whoever waits
// already stays, so High ones have nobody else before them than those, and what
// need not wait is let in. RetryAfter is then until the line has drained.
//
// With ReserveHigh, a share of rate, burst and places is for requests of class High
// only, also while none comes. What is promised above then holds twice: for all by
// the whole, and for those of other classes by the rest. In any interval of length t
// at most the rest's rate × (t + 2 ms) + the rest's burst of them are released, and
// no more are unfinished than the rest's places. What counts is a request's own
// class: PromoteAfter moves it in the order, and no more. Who may not go because the
// rest is used up keeps its place, and the next of class High that may go passes it.
// So while somebody waits whom both allow to go, somebody goes at that instant; and of
// those who may go, the first in order goes. The wait that is predicted for one below
// High is as if all of class High who wait went first, and for one of class High not
// longer than what is reserved takes to let out those of its class before it, and
// what the rest's bucket holds. Turning it off lets out no bunch: what gathered
// while others were held back is for nobody who waited then, but for one token.
//
// A dry run decides as if all were of one flow and of class High, so that nobody is
// held to what is not reserved. Nobody stands in its
// queue, so it cannot tell who would have been overtaken, put out or shed, who would
// have given up, nor for how long one that would have waited would have held
// its place.
//
// Nor does any of this promise that a released request arrives at its
// destination at that spacing. It shapes the outflow of this process.
//
// # A pace that several processes share
//
// With [WithPace], the lines of a Shaper share their rate and burst with those of the
// same keys in other processes: each asks a [SharedPace] for the next departures of one
// schedule, some in advance, and its head leaves at those instants. Of what is
// promised above, the rate is then that of all lines together, and in any interval of
// length t at most rate × (t + 2 × Slack + e) + burst + 2 are released, where e is what
// the SharedPace's instants may be late by; a departure that was granted and cannot be used lapses;
// a stall of the machine counts as waiting; the wait that is predicted, and RetryAfter,
// are as good as what is known of the others.
//
// With [WithLeases] they share the places of MaxInFlight in the same way: each line says
// to [SharedLeases] how many it holds and wants. One that becomes free is the next
// waiter's here if it would be granted to this line again, by the last answer, and else
// goes back. So never more are unfinished over all lines than MaxInFlight, as far as
// SharedLeases keeps that, and a place that changes hands is idle for as long as it takes
// until the other line asks again, which is 20 ms at most while up to 20 lines of the Shaper
// wait for places of others, and then as many ms as there are such lines.
//
// # The parts
//
// A [Pace] says when the next may go, [queue.Turns] say who that is. A [Line]
// puts them together, and adds how many may wait and for how long. All are
// values without locks that are told the time, so they serve a replay in virtual
// time as they serve live requests. A Shaper keeps one line for each key, and
// adds locks, timers and channels. A [Chain] is the limits of one route.
//
// The promise is a property of random walks in virtual time, against a slow
// reference of all of it: TestLedger for lines whose timers are late and whose
// clock is set, TestLedgerOfShaper for live requests, to the nanosecond.
package shaping
