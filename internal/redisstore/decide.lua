-- Decides the charges of one request at one instant: all are taken, or none.
--
-- KEYS[i] is the state of charge i. ARGV is the mode (take, look or return),
-- for a return the instant of the take, and a block of 11 for each charge:
--
--   1 algorithm: b, a bucket; f and c, a fixed window and a sliding counter;
--     l, a sliding log
--   2 tag, the policy under which a state is counted
--   3 a state under another tag, and 4 what that is under this one; or both ''
--   5 and on, numbers:
--     b  room after the cost, cost, all: microseconds and fraction each;
--        fractions a microsecond
--     f  limit, cost with the charges before it, cost, length and phase of the
--        windows; where the calendar gives them 0, and start and end of this one
--     c  the same, never by the calendar
--     l  limit, cost with the charges before it, cost, window, and the instant
--        from which the policy has been the one of the tag
--
-- A state is 'tag instant number...', a log a list of 'tag used' and an
-- 'instant count' each. Instants are microseconds of Unix time. Every number
-- is an integer below 2^53, so that a double holds it exactly; math.fmod is
-- exact for them, and Lua's % is not.
--
-- The answer is the instant, then 1 if all was taken, 0 if not, and three numbers
-- for each charge; or -1 and the states, as one is under another tag; or -2, as
-- the calendar's window is another by now.

local mode, at = ARGV[1], tonumber(ARGV[2])
local fmod, match, call = math.fmod, string.match, redis.call

local function text(n) return string.format('%.0f', n) end

local function more(us, frac, than_us, than_frac)
  return us > than_us or us == than_us and frac > than_frac
end

-- Whether a/b <= c/d, by their continued fractions: no product would be exact.
local function at_most(a, b, c, d)
  while true do
    local whole_a, whole_c = (a - fmod(a, b)) / b, (c - fmod(c, d)) / d
    if whole_a ~= whole_c then return whole_a < whole_c end
    a, c = fmod(a, b), fmod(c, d)
    if a == 0 then return true end
    if c == 0 then return false end
    a, b, c, d = d, c, b, a
  end
end

-- expire_in makes Redis forget the key when it is as good as new, and not sooner
-- if the server's clock is set back by less than the grace.
local function expire_in(us) return text(math.ceil(us / 1000) + grace) end

local function load(c)
  local raw = call('GET', c.key) or ''
  local s = { raw = raw }
  if raw ~= '' and raw == c.old then
    raw, s.changed = c.new, true
  end
  if raw == '' then return s end
  local tag
  tag, s.at, s[1], s[2], s[3] = match(raw, '^(%S+) (%d+) (%S+) (%S+) ?(%S*)$')
  if tag ~= c.tag then
    s.foreign = true
    return s
  end
  s[1], s[2], s[3] = tonumber(s[1]), tonumber(s[2]), tonumber(s[3])
  return s
end

local function save(c, us, ...)
  if us <= 0 then
    call('DEL', c.key)
    return
  end
  local words = { c.tag, text(now), ... }
  for i = 3, #words do words[i] = text(words[i]) end
  call('SET', c.key, table.concat(words, ' '), 'PX', expire_in(us))
end

-- A state from an instant to come says that the clock was set back. It then counts
-- as used no more than everything, and is changed to that at once: corrected only
-- when it is looked at, it would move along with every look, and nothing would
-- pass until the clock is where it was.

-- A bucket is the generic cell rate algorithm (ITU-T I.371). Its state is the
-- instant at which all is back; here it is held as the time until then.
local bucket = {
  load = load,
  settle = function(c, s)
    local us, frac = (s[1] or 0) - now, s[2] or 0
    if us < 0 then
      us, frac = 0, 0
    elseif more(us, frac, c[5], c[6]) then
      us, frac, s.changed = c[5], c[6], true
    end
    s[1], s[2] = us, frac
  end,
  fits = function(c, s) return not more(s[1], s[2], c[1], c[2]) end,
  take = function(c, s)
    s[1], s[2] = s[1] + c[3], s[2] + c[4]
    if s[2] >= c[7] then s[1], s[2] = s[1] + 1, s[2] - c[7] end
  end,
  give = function(c, s)
    -- What has come back by itself since the take is not given twice.
    local us, frac = c[3] - math.max(0, now - at), c[4]
    if us < 0 then return end
    us, frac = s[1] - us, s[2] - frac
    if frac < 0 then us, frac = us - 1, frac + c[7] end
    if us < 0 then us, frac = 0, 0 end
    s[1], s[2] = us, frac
  end,
  save = function(c, s)
    local us = s[1]
    if s[2] > 0 then us = us + 1 end
    save(c, us, now + s[1], s[2])
  end,
  answer = function(c, s) return s[1], s[2], 0 end,
}

-- The start of the window that now is in, as time.Time.Truncate has it.
local function start_of(c)
  local into = fmod(now, c[4]) - (c[4] - c[5])
  if into < 0 then into = into + c[4] end
  return now - into
end

local fixed = {
  load = load,
  settle = function(c, s)
    local start = c[4] > 0 and start_of(c) or c[5]
    s.finish = c[4] > 0 and start + c[4] or c[6]
    if not s[1] or s[1] < start then s[2] = 0 end
    s.changed = s.changed or s[1] and s[1] > start
    s[1] = start
  end,
  fits = function(c, s) return s[2] <= c[1] - c[2] end,
  take = function(c, s) s[2] = s[2] + c[3] end,
  give = function(c, s)
    if at >= s[1] then s[2] = math.max(0, s[2] - c[3]) end
  end,
  save = function(c, s) save(c, s[2] > 0 and s.finish - now or 0, s[1], s[2]) end,
  answer = function(c, s) return s[1], s[2], 0 end,
}

local counter = {
  load = load,
  settle = function(c, s)
    local start = start_of(c)
    if not s[1] or s[1] < start - c[4] then
      s[2], s[3] = 0, 0
    elseif s[1] < start then
      s[2], s[3] = 0, s[2]
    end
    s.changed = s.changed or s[1] and s[1] > start
    s[1] = start
  end,
  fits = function(c, s)
    local room = c[1] - c[2] - s[2]
    if room < 0 then return false end
    return s[3] <= room or at_most(s[1] + c[4] - now, c[4], room, s[3])
  end,
  take = function(c, s) s[2] = s[2] + c[3] end,
  give = function(c, s)
    if at >= s[1] then
      s[2] = math.max(0, s[2] - c[3])
    elseif at >= s[1] - c[4] then
      s[3] = math.max(0, s[3] - c[3])
    end
  end,
  save = function(c, s)
    local windows = s[2] > 0 and 2 or s[3] > 0 and 1 or 0
    save(c, windows > 0 and s[1] + windows * c[4] - now or 0, s[1], s[2], s[3])
  end,
  answer = function(c, s) return s[1], s[2], s[3] end,
}

local function entry(raw)
  local instant, n = match(raw, '^(%d+) (%d+)$')
  return tonumber(instant), tonumber(n)
end

local function note(c, s) call('LSET', c.key, 0, c.tag .. ' ' .. text(s.used)) end

-- drop removes the entries up to the instant.
local function drop(c, s, last)
  repeat
    local gone, list = 0, call('LRANGE', c.key, 1, 32)
    for _, raw in ipairs(list) do
      local instant, n = entry(raw)
      if instant > last then break end
      gone, s.used = gone + 1, s.used - n
    end
    if gone > 0 then
      call('LTRIM', c.key, gone, -1)
      note(c, s)
    end
  until gone < 32
end

-- push adds an entry at now, the newest; of one instant there is one.
local function push(c, s, n)
  if s.used == 0 then
    call('DEL', c.key)
    call('RPUSH', c.key, c.tag .. ' 0')
  end
  s.used = s.used + n
  local instant, last = entry(call('LINDEX', c.key, -1))
  if instant == now then
    call('LSET', c.key, -1, text(now) .. ' ' .. text(last + n))
  else
    call('RPUSH', c.key, text(now) .. ' ' .. text(n))
  end
  note(c, s)
end

-- adopt goes on under another limit or window: what the old window has let go is
-- gone, and of the rest the newest count, up to the limit.
local function adopt(c, s, tag)
  local window = match(tag, '^l|%d+|(%d+)$') / 1000
  local newest = entry(call('LINDEX', c.key, -1))
  drop(c, s, math.max(c[5], newest or 0) - window)
  while s.used > c[1] do
    local instant, n = entry(call('LINDEX', c.key, 1))
    local over = math.min(n, s.used - c[1])
    s.used = s.used - over
    if over < n then
      call('LSET', c.key, 1, text(instant) .. ' ' .. text(n - over))
    else
      call('LTRIM', c.key, 1, -1)
    end
  end
  note(c, s)
end

-- A log is changed where it lies.
local log = {
  load = function(c)
    local s = { used = 0 }
    local head = call('LINDEX', c.key, 0)
    if head then
      local tag, used = match(head, '^(%S+) (%d+)$')
      s.used = tonumber(used)
      if tag ~= c.tag then
        adopt(c, s, tag)
        s.changed = true
      end
    end
    return s
  end,
  settle = function(c, s)
    if s.used == 0 then return end
    drop(c, s, now - c[4])
    -- The clock was set back: what lies ahead counts as come now.
    local ahead = 0
    while s.used > 0 do
      local instant, n = entry(call('LINDEX', c.key, -1))
      if instant <= now then break end
      ahead, s.used = ahead + n, s.used - n
      call('RPOP', c.key)
    end
    if ahead > 0 then push(c, s, ahead) end
    if s.used == 0 then call('DEL', c.key) end
  end,
  fits = function(c, s) return s.used <= c[1] - c[2] end,
  take = function(c, s) push(c, s, c[3]) end,
  give = function(c, s)
    local i = -1
    while s.used > 0 do
      local raw = call('LINDEX', c.key, i)
      local instant, n = entry(raw)
      if not instant or instant < at then return end
      if instant == at then
        local back = math.min(n, c[3])
        s.used = s.used - back
        if back < n then
          call('LSET', c.key, i, text(instant) .. ' ' .. text(n - back))
        else
          call('LREM', c.key, -1, raw)
        end
        return note(c, s)
      end
      i = i - 1
    end
  end,
  save = function(c, s)
    if s.used == 0 then
      call('DEL', c.key)
    else
      call('PEXPIRE', c.key, expire_in(c[4]))
    end
  end,
  -- What is used, when the oldest came, and when the one came that must leave
  -- before the cost fits.
  answer = function(c, s, taken)
    if s.used == 0 then return 0, 0, 0 end
    local oldest = entry(call('LINDEX', c.key, 1))
    local over, first = s.used - (c[1] - c[2]), 1
    if taken or over <= 0 or c[2] > c[1] then return s.used, oldest, 0 end
    while true do
      for _, raw in ipairs(call('LRANGE', c.key, first, first + 63)) do
        local instant, n = entry(raw)
        over = over - n
        if over <= 0 then return s.used, oldest, instant end
      end
      first = first + 64
    end
  end,
}

local algorithms = { b = bucket, f = fixed, c = counter, l = log }

local charges, states = {}, {}
local foreign = false
for i, key in ipairs(KEYS) do
  local base = 2 + (i - 1) * 11
  local c = { key = key, by = algorithms[ARGV[base + 1]], tag = ARGV[base + 2], old = ARGV[base + 3], new = ARGV[base + 4] }
  for k = 1, 7 do c[k] = tonumber(ARGV[base + 4 + k]) end
  charges[i] = c
  if c.by == fixed and c[4] == 0 and (now < c[5] or now >= c[6]) then
    return { now, -2 }
  end
end
for _, c in ipairs(charges) do
  if not states[c.key] then
    local s = c.by.load(c)
    states[c.key], foreign = s, foreign or s.foreign
  end
end
if foreign then
  if mode == 'return' then return { now, 0 } end
  local answer = { now, -1 }
  for i, c in ipairs(charges) do answer[i + 2] = states[c.key].raw or '' end
  return answer
end

local taken = mode ~= 'look'
for _, c in ipairs(charges) do
  local s = states[c.key]
  if not s.settled then
    c.by.settle(c, s)
    s.settled = true
  end
  if mode == 'take' and not c.by.fits(c, s) then taken = false end
end
for _, c in ipairs(charges) do
  local s = states[c.key]
  if taken and (c[3] > 0 or c.by == bucket and c[4] > 0) then
    if mode == 'take' then c.by.take(c, s) else c.by.give(c, s) end
    s.changed = true
  end
end
for _, c in ipairs(charges) do
  local s = states[c.key]
  if s.changed then
    c.by.save(c, s)
    s.changed = false
  end
end

local answer = { now, taken and 1 or 0 }
for i, c in ipairs(charges) do
  local base = 2 + (i - 1) * 3
  answer[base + 1], answer[base + 2], answer[base + 3] = c.by.answer(c, states[c.key], taken)
end
return answer
