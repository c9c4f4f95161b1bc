-- Buckets: GCRA, `token_bucket` and `min_interval` answer yes or no; a leaky bucket is a queue that lets requests out at
-- an even pace, and says how long to wait. What is owed to a bucket is kept as the time that pays it back, (µs, part).
--
-- KEYS     a string "<µs> <part> <rate>": nothing is owed any more at µs + part/rate, rate in units per period
-- ARGV     limit in units, period in µs, the bucket's capacity in units, the time that fills it: full µs, full part;
--          and what limit and period have in common: parts are multiples of it, after a change of limit rounded up
-- RETURNS  mark: the instant of the charge; of a queue its tail after the charge, µs and part

local capacity, full_us, full_part, share = a, b, c, d
local unit, pace = period / share, limit / share -- a unit in ticks, the ticks that a microsecond pays back
local queues = letter == 108 -- 'l', a leaky bucket
local known_text, known_rate -- the rate that was read last, because most values are of the same

-- (a * b + c) / m as quotient and remainder, exactly: a below 2^53, b to 2^33, c and m to 2^32.
local function muldiv(a, b, c, m)
  local product = a * b + c
  if product <= EXACT then
    local rest = product % m
    return (product - rest) / m, rest
  end
  local over, high = a % m, floor(b / 65536)
  local upper = over * high
  local rest = upper % m
  local lower = rest * 65536 + over * (b - high * 65536) + c
  local part = lower % m
  return (a - over) / m * b + (upper - rest) / m * 65536 + (lower - part) / m, part
end

local function read(value)
  local us, part, rate = match(value, '^(%d+) (%d+) (%d+)$')
  if not us then
    return nil
  elseif rate ~= known_text then
    known_text, known_rate = rate, rate + 0
  end
  us, part = us + 0, part + 0
  if us < EXACT and part < known_rate and known_rate <= 4294967296 then
    return us, part, known_rate
  end
end

local function write(us, part, rate)
  if rate ~= known_rate then
    known_text, known_rate = text(rate), rate
  end
  if part == 0 then
    return text(us) .. ' 0 ' .. known_text, us
  end
  return text(us) .. ' ' .. text(part) .. ' ' .. known_text, us + 1
end

-- A time in whole microseconds, rounded up.
local function whole(us, part)
  return part > 0 and us + 1 or us
end

local function minus(us, part, less_us, less_part)
  if part >= less_part then
    return us - less_us, part - less_part
  end
  return us - less_us - 1, part - less_part + limit
end

-- Whether the first time is longer than the second.
local function exceeds(us, part, other_us, other_part)
  return us > other_us or (us == other_us and part > other_part)
end

-- The time that pays `units` back.
local function span(units)
  local us, ticks = muldiv(unit, units, 0, pace)
  return us, ticks * share
end

-- The whole units that a time pays back, and how long until it would be one more, rounded up.
local function units_in(us, part)
  local ticks = us * pace + floor(part / share)
  if ticks <= EXACT then
    local over = ticks % unit
    return (ticks - over) / unit, ceil((unit - over) / pace)
  end
  local units = floor(ticks / unit) - 1 -- rounded, so by one too many or too few
  local next_us, next_part = span(units + 1)
  while not exceeds(next_us, next_part, us, part) do
    units = units + 1
    next_us, next_part = span(units + 1)
  end
  return units, whole(minus(next_us, next_part, us, part))
end

-- What is owed now, at the limit of today, if nothing will be owed at `at` + part/rate; at most a full bucket.
local function owed(at, part, rate)
  if not at or at < now then
    return 0, 0
  end
  local us = at - now
  if rate ~= limit then
    us, part = muldiv(us, rate, part, limit)
    part = ceil(part / share) * share
    if part == limit then
      us, part = us + 1, 0
    end
  end
  if exceeds(us, part, full_us, full_part) then
    return full_us, full_part
  end
  return us, part
end

-- What is owed after `units` more, and whether that is more than the bucket holds.
local function charge(us, part, units)
  local more_us, more_part = span(units)
  us, part = us + more_us, part + more_part
  if part >= limit then
    us, part = us + 1, part - limit
  end
  return us, part, exceeds(us, part, full_us, full_part)
end

local function decide(cost, at, at_part, rate)
  local us, part = owed(at, at_part, rate)
  local total_us, total_part, overflows = charge(us, part, cost)
  if overflows then
    local room_us, room_part = minus(full_us, full_part, us, part)
    local left, more = units_in(room_us, room_part)
    local cost_us, cost_part = span(cost)
    local retry = whole(minus(cost_us, cost_part, room_us, room_part))
    -- What was pulled back, or is paid back at another rate from now on, must be kept so for the answer to hold.
    if not at or rate ~= limit or (us == full_us and part == full_part) then
      at, at_part = now + us, part
    end
    return at, at_part, limit, 0, left, retry, whole(us, part), more, 0, NOT_CHARGED, 0
  end
  local left, more = units_in(minus(full_us, full_part, total_us, total_part))
  if total_us == 0 and total_part == 0 then
    more = 0
  end
  local tail, until_full = now + total_us, whole(total_us, total_part)
  if queues then
    return tail, total_part, limit, 1, left, 0, until_full, more, whole(us, part), tail, total_part
  end
  return tail, total_part, limit, 1, left, 0, until_full, more, 0, now, 0
end

local function amends()
  local CENTURIES = 9000000000000000 -- µs: what takes that long is exact no more, and fills any bucket in any case

  -- The units that pay for a time, rounded up.
  local function whole_units(us, part)
    local units = units_in(us, part)
    local span_us, span_part = span(units)
    return (span_us ~= us or span_part ~= part) and units + 1 or units
  end

  -- What is kept once a time more is owed, whether it fits or not.
  local function raised(more_us, more_part, at, part, rate)
    local us
    us, part = owed(at, part, rate)
    us, part = us + more_us, part + more_part
    if part >= limit then
      us, part = us + 1, part - limit
    end
    if exceeds(us, part, full_us, full_part) then
      us, part = full_us, full_part
    end
    return now + us, part, limit
  end

  local function force(cost, at, part, rate)
    local more_us, more_part = span(min(cost, capacity))
    return raised(more_us, more_part, at, part, rate)
  end

  -- Charge what time has not paid of `units` since `instant`, even if they are more than the bucket holds; the mirror
  -- image of `refund`.
  local function report(units, instant, at, part, rate)
    local more_us, more_part = full_us, full_part
    units = min(units, MAX_USED)
    if units * (period / limit) < CENTURIES then
      more_us, more_part = span(units)
      more_us = more_us - max(now - instant, 0)
    end
    if more_us < 0 or (more_us == 0 and more_part == 0) then
      return 0
    elseif exceeds(more_us, more_part, full_us, full_part) then
      more_us, more_part = full_us, full_part
    end
    return whole_units(more_us, more_part), raised(more_us, more_part, at, part, rate)
  end

  -- Take back what time has not paid of `units`. Of a queue only the tail can be, less what has been served.
  local function refund(units, mark, mark_part, at, part, rate)
    if queues and (at ~= mark or part ~= mark_part or rate ~= limit) then
      return 0, at, part, rate
    end
    local us, back_us, back_part
    us, part = owed(at, part, rate)
    back_us, back_part = span(units)
    back_us = queues and back_us or back_us - max(now - mark, 0)
    if back_us < 0 then
      return 0, now + us, part, limit
    elseif exceeds(back_us, back_part, us, part) then
      back_us, back_part = us, part
    end
    us, part = minus(us, part, back_us, back_part)
    return whole_units(back_us, back_part), now + us, part, limit
  end

  return force, refund, report
end

counter = { read = read, write = write, decide = decide, amends = amends, queues = queues, drains = true }
