-- Places that are held until a request has ended. KEYS[1] is a sorted set of who
-- holds one, by the instant until which that is believed. ARGV is the mode, for
-- how many microseconds a place is believed, how many there are, and the names
-- of places: one to take, or those to give back or to keep.
--
-- The answer is the time, 1 unless no place was free, and how many are taken.

local time = redis.call('TIME')
local now, lease = tonumber(time[1]) * 1000000 + tonumber(time[2]), tonumber(ARGV[2])
local key, taken = KEYS[1], 1

redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now))
if ARGV[1] == 'return' then
  for i = 4, #ARGV do redis.call('ZREM', key, ARGV[i]) end
elseif ARGV[1] == 'take' and redis.call('ZCARD', key) >= tonumber(ARGV[3]) then
  taken = 0
else
  local believed = string.format('%.0f', now + lease)
  for i = 4, #ARGV do redis.call('ZADD', key, believed, ARGV[i]) end
  redis.call('PEXPIRE', key, string.format('%.0f', lease / 1000))
end
return { now, taken, redis.call('ZCARD', key) }
