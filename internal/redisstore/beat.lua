-- Says that the proxy ARGV[1] lives, in KEYS[1], forgets those who have not said
-- so for ARGV[2] microseconds, and answers the time, how many live, and what each
-- of the others has said of who waits there. That is in KEYS[2]; it says ARGV[3].
local time = redis.call('TIME')
local now, quiet = tonumber(time[1]) * 1000000 + tonumber(time[2]), tonumber(ARGV[2])
-- First, as a server that is full refuses it: once a script has written something,
-- be it that nothing was to be removed, it may write on.
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - quiet))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', quiet / 1000))

local answer = { now, redis.call('ZCARD', KEYS[1]) }
local said = redis.call('HGETALL', KEYS[2])
for i = 1, #said, 2 do
  if said[i] ~= ARGV[1] and redis.call('ZSCORE', KEYS[1], said[i]) then
    answer[#answer + 1] = said[i + 1]
  elseif said[i] ~= ARGV[1] or ARGV[3] == '' then
    redis.call('HDEL', KEYS[2], said[i])
  end
end
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
  redis.call('PEXPIRE', KEYS[2], string.format('%.0f', quiet / 1000))
end
return answer
