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
//     Limit × 16 bytes a key, taken as it fills and given back as it empties.
//     Use it for limits up to some thousands.
//   - SlidingWindowCounter: nearly that in three words a key. It takes the
//     window before to have been even, so that an uneven one can pass or lose
//     a part of the limit: with random traffic up to an eighth too much in a
//     window of 100, with traffic made to exploit it twice the limit. A key that
//     used everything at once may wait for up to two windows.
//
// Windows are aligned as time.Time.Truncate aligns: a window of a day begins at
// midnight UTC. A fixed window may follow a Calendar instead, by the clocks of
// any place.
//
// A request whose cost is above the limit is refused for good (RetryAfter is
// Never). Time is counted in nanoseconds and exact fractions of them, so no
// rate drifts and RetryAfter is the first instant at which a client that is
// alone is let through.
//
// # How to use it
//
// New makes a limit with a budget for each key, NewSingle one that counts
// everything together. Allow says yes or no; Take also says what is left and
// when to come back; Peek looks and takes nothing. A Memory makes limits that
// decide about one request together, all or nothing. For an http.Handler in
// front of yours see proxy.Guard, for waiting until one's turn has come package
// shaping.
//
// # What is kept of a key
//
// A 64-bit hash under a secret seed and one to three words, for at most MaxKeys
// keys. Two keys of one hash share a budget; among a million keys there are such
// two with a probability of one in 37 million, and nobody can choose them.
//
// When MaxKeys are kept, a new one takes the place of the one that is nearest to
// being as good as new among 16: the time until all of its budget is back, times
// the share that is used. So an exhausted key outlives any flood of fresh ones,
// and who wants to push it out has to exhaust about MaxKeys others. A key that
// has used little may be forgotten in a flood and then starts anew; Evicted
// counts that. A limit by something that clients may invent limits nobody,
// whatever is kept.
package limiter
