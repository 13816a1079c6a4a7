// Numbers and limits as they are read.

// A rate: a tenth matters only when there are few.
export function rate(n) {
  if (n === 0) return "0";
  if (n < 9.95) return n.toFixed(1);
  if (n < 10_000) return String(Math.round(n));
  return n < 1e6 ? `${(n / 1e3).toFixed(1)}k` : `${(n / 1e6).toFixed(1)}M`;
}

export function seconds(s) {
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${s.toFixed(1)} s`;
  return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
}

export const whole = (n) => n.toLocaleString("en");

export const listed = (v) => [v].flat().join(", "); // a word or a list of words

export function reasons(counts) {
  return Object.entries(counts).sort(([, a], [, b]) => b - a).map(([reason, n]) => `${reason} ${whole(n)}`).join(", ");
}

export function words(l) {
  const each = l.key === "global" ? "" : `, for each ${listed(l.key)}`;
  const waits = () => `up to ${whole(l.queue)} wait, each at most ${l.max_wait}${each}.`;
  switch (l.algorithm) {
    case "leaky-bucket":
      return l.queue > 0
        ? `Leaky bucket with a queue: requests leave evenly at ${paceOf(l)}; ${waits()}`
        : `Leaky bucket: drains at ${l.rate} and refuses what would overflow ${whole(l.burst)}${each}.`;
    case "token-bucket":
      return l.queue > 0
        ? `Token bucket with a queue: ${whole(l.burst)} at once, then ${paceOf(l)}; ${waits()}`
        : `Token bucket: ${whole(l.burst)} at once, then ${l.rate}${each}.`;
    case "fixed-window":
      return `Fixed window: ${whole(l.limit)} in each ${l.window}${each}.`;
    case "sliding-window-log":
      return `Sliding window, exact: at most ${whole(l.limit)} in any ${l.window}${each}.`;
    case "sliding-window-counter":
      return `Sliding window of two counters: about ${whole(l.limit)} in any ${l.window}${each}.`;
    case "concurrency":
      return l.queue > 0
        ? `Places: ${placesOf(l)} at the upstream at once; ${waits()}`
        : `Places: ${placesOf(l)} at the upstream at once${each}.`;
  }
  return l.algorithm;
}

// Why nothing leaves, and for how long.
export function pause(l) {
  const by = l.paused === "operator" ? "Paused by an operator" : `Paused: ${l.paused}`;
  return l.resumes_in_seconds > 0 ? `${by}; goes on in ${seconds(l.resumes_in_seconds)}.` : `${by}, until resumed.`;
}

// What is searched for is told by its bounds.
const paceOf = (l) => l.rate === "auto" ? `a rate found out between ${l.min_rate} and ${l.max_rate}` : l.rate;
const placesOf = (l) => l.max_in_flight === "auto" ? `as many as are found out between ${whole(l.min_in_flight)} and ${whole(l.max_in_flight_limit)}` : whole(l.max_in_flight);
