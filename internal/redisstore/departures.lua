-- A schedule of departures that several lines share. KEYS[1] is a hash: s is
-- the state, 'tag instant tat fraction', and under the name of each proxy that
-- wants more departures than it has 'until ahead': until when they last, and how many
-- it needs in advance.
--
-- The schedule is the generic cell rate algorithm (ITU-T I.371), as a bucket in
-- decide.lua, but one that may be used up beforehand: tat is when all that was
-- granted is paid for, however far ahead.
--
-- ARGV is ask or return; the tag; a state under another tag, and what it is under
-- this one, or both ''; and numbers:
--   ask     fractions a microsecond, what the departures take (microseconds and
--           fraction), for how long the first was there to be used, how long from
--           now a schedule begins that is not known, what a whole burst but one takes;
--           the name of the proxy, and how many it needs in advance if it wants more, or 0
--   return  tat as it must be, and as it is to be (microseconds and fraction each)
--
-- The answer is the instant, then 1, tat as it was, how many others want more, and
-- the most that one of them needs in advance: whoever asked for fewer at a time would
-- have a smaller share. Or 0 if nothing could be given back; or -1 and the state, as it is under another tag.

local key, mode, tag, call = KEYS[1], ARGV[1], ARGV[2], redis.call
local n = {}
for i = 5, 12 do n[i - 4] = tonumber(ARGV[i]) end

local function text(x) return string.format('%.0f', x) end

local raw = call('HGET', key, 's') or ''
if raw ~= '' and raw == ARGV[3] then raw = ARGV[4] end
local known, at, us, frac = string.match(raw, '^(%S+) (%d+) (%d+) (%d+)$')
if raw ~= '' and known ~= tag then
  if mode == 'return' then return { now, 0 } end
  return { now, -1, raw }
end
at, us, frac = tonumber(at), tonumber(us), tonumber(frac)

local function save()
  call('HSET', key, 's', tag .. ' ' .. text(now) .. ' ' .. text(us) .. ' ' .. text(frac))
  call('PEXPIRE', key, text(math.ceil(math.max(0, us - now) / 1000) + grace))
end

if mode == 'return' then
  if us ~= n[1] or frac ~= n[2] then return { now, 0 } end
  us, frac = n[3], n[4]
  save()
  return { now, 1 }
end

if not us then
  us, frac = now + math.max(0, n[5]), 0
elseif at > now then
  us = us - (at - now) -- the clock was set back
end
local from = now - n[4]
if us < from then us, frac = from, 0 end
local first_us, first_frac = us, frac
us, frac = us + n[2], frac + n[3]
if frac >= n[1] then us, frac = us + 1, frac - n[1] end
if us > 2 ^ 52 then return { now, -2 } end

local who, others, ahead, over = ARGV[11], 0, 0, {}
local all = call('HGETALL', key)
for i = 1, #all, 2 do
  if all[i] ~= 's' and all[i] ~= who then
    local till, needs = string.match(all[i + 1], '^(%d+) (%d+)$')
    till, needs = tonumber(till), tonumber(needs)
    if till and till > now and till <= us then -- else from before the clock was set back
      others, ahead = others + 1, math.max(ahead, needs)
    else
      over[#over + 1] = all[i]
    end
  end
end
if ARGV[12] ~= '0' then
  call('HSET', key, who, text(us - n[6]) .. ' ' .. ARGV[12])
else
  over[#over + 1] = who
end
for _, name in ipairs(over) do call('HDEL', key, name) end
save()
return { now, 1, first_us, first_frac, others, ahead }
