// Package limiter decides whether a request may go on, now.
//
// # Which algorithm
//
// Start with a token bucket. It lets Burst requests go at once and then Rate
// of them, costs two words a key and treats every moment alike. Take another
// for a reason:
//
//   - TokenBucket: at most Burst + Rate × t in any time t. The default.
//   - LeakyBucket: the same decisions, told the other way round: requests fill
//     a bucket of Burst that drains at Rate. Its queue form, in package
//     shaping, is what spaces requests out.
//   - FixedWindow: a quota that people know by heart, such as 1000 a day, with
//     a definite instant at which it starts anew. Around that instant twice the
//     limit can pass in a short time.
//   - SlidingWindowLog: never more than Limit in any Window, exactly, for
//     contracts that say so. It remembers each instant with a request: up to
//     Limit × 16 bytes a key. Use it for limits up to some thousands.
//   - SlidingWindowCounter: nearly that in three words a key. It takes the
//     window before to have been even, so that an uneven one can pass or lose
//     a part of the limit; and a key that used everything at once may wait for
//     up to two windows.
//
// Windows are aligned as time.Time.Truncate aligns: a window of a day begins at
// midnight UTC.
//
// A request whose cost is above the limit is refused for good (RetryAfter is
// Never). Time is counted in nanoseconds and exact fractions of them, so no
// rate drifts and RetryAfter is the first instant at which a client that is
// alone is let through.
//
// # How to use it
//
// New makes a single limit. A Memory makes limits that decide about one
// request together, all or nothing, and bounds how many keys each remembers.
// What waits for its turn is in package shaping.
package limiter
