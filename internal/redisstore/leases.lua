-- Places that lines of several proxies hold. KEYS[1] is a hash: under the name of each
-- proxy 'call held until wants until turn': the number of the last call, how many
-- places it holds and until when that is believed, how many more it wants and until
-- when, and since when it waits for its turn. Under ! is until when nothing is granted.
--
-- ARGV is the name of the proxy, and numbers: of the call; for how long what it holds,
-- and what it wants, is believed, in microseconds; how many places there are; how many
-- it holds, and how many more it wants; and for how long nothing is granted if the
-- server has lost what it knew, or 0 if it need not have known of this proxy.
--
-- A place that is free is for whoever of those who want one holds the fewest, and of
-- several for the one whose turn is the oldest: max-min fairness, as a proxy that wants
-- less than an equal share leaves the rest to others.
--
-- The answer is the time; how many more the proxy holds now, or -1 if a later call has
-- been here before; how many are left that nobody wants; up to how many it may keep
-- as they become free; and 1 if one that another holds, or is about to, is for it when that is free.

local key, me, call = KEYS[1], ARGV[1], redis.call
local n = {}
for i = 2, 8 do n[i - 1] = tonumber(ARGV[i]) end
local number, lease, wish, most, held, more, lost = n[1], n[2], n[3], n[4], n[5], n[6], n[7]

local function text(x) return string.format('%.0f', x) end

local all = call('HGETALL', key)
local taken, turn, rivals, others, over, quiet = 0, now, {}, {}, {}, 0
if #all == 0 and lost > 0 then
  quiet = now + lost
  call('HSET', key, '!', text(quiet))
end
for i = 1, #all, 2 do
  local who = all[i]
  if who == '!' then
    quiet = math.min(tonumber(all[i + 1]), now + 5000000)
    if quiet <= now then over[#over + 1] = who end
  else
    local c, h, u, w, v, t = string.match(all[i + 1], '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
    c, h, u, w, v, t = tonumber(c), tonumber(h), tonumber(u), tonumber(w), tonumber(v), tonumber(t)
    if not c then return { now, -2, 0, 0, 0 } end
    if who == me then
      if c >= number then return { now, -1, 0, 0, 0 } end
      if h > 0 or w > 0 and v > now then turn = math.min(t, now) end
    else
      -- Nothing is believed for longer than that, though the clock was set back.
      if u > now + lease then
        u, v = now + lease, math.max(0, v - (u - now - lease))
        call('HSET', key, who, table.concat({ text(c), text(h), text(u), text(w), text(v), text(t) }, ' '))
      end
      if u <= now then h = 0 end
      if v <= now or v > now + 3600000000 then w = 0 end
      if h == 0 and w == 0 then
        over[#over + 1] = who
      else
        taken = taken + h
        local o = { who = who, held = h, wants = w, turn = t }
        others[#others + 1] = o
        if w > 0 then rivals[#rivals + 1] = o end
      end
    end
  end
end
for _, who in ipairs(over) do call('HDEL', key, who) end

local free = most - taken - held
if quiet > now then free = math.min(free, 0) end
local granted = 0
while granted < more do
  -- Those that are for others before this one is for me.
  local before = granted
  for _, o in ipairs(rivals) do
    local first = held + granted - o.held
    if o.turn < turn or o.turn == turn and o.who < me then first = first + 1 end
    before = before + math.max(0, math.min(o.wants, first))
  end
  if before >= free then break end
  granted = granted + 1
end
held, more, free = held + granted, more - granted, free - granted
if granted > 0 then turn = now end

-- A place that is free, but another's, is in use by it soon, and then for this one.
local keep, near = most, free > 0 and more > 0 and 1 or 0
for _, o in ipairs(rivals) do free = free - o.wants end
if free < 0 and quiet <= now then
  for _, o in ipairs(rivals) do keep = math.min(keep, o.held) end
end
if taken + held > most then keep = 0 end
for _, o in ipairs(others) do
  if o.held > held or o.held > 0 and o.wants == 0 then near = 1 end
end

if held > 0 or more > 0 then
  call('HSET', key, me, table.concat({ text(number), text(held), text(now + lease), text(more), text(now + wish), text(turn) }, ' '))
elseif #all > 0 then
  call('HDEL', key, me)
end
call('PEXPIRE', key, text((math.max(lease, wish) + lost) / 1000 + grace))
return { now, granted, math.max(0, free), keep, near }
