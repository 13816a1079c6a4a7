-- Says that the proxy ARGV[1] lives, in KEYS[1], forgets those who have not said
-- so for ARGV[2] microseconds, and answers the time and how many live.
local time = redis.call('TIME')
local now, quiet = tonumber(time[1]) * 1000000 + tonumber(time[2]), tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - quiet))
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', quiet / 1000))
return { now, redis.call('ZCARD', KEYS[1]) }
