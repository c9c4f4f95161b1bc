-- Calendar: one counter per day, week, month or year of a time zone.
--
-- KEYS     a string "<start> <end> <used>": the period in seconds since the epoch, units used in it
-- ARGV     limit in units, longest period in µs, the boundaries of three periods around the caller's clock in µs
-- RETURNS  mark: the start of the period in µs. `counter.stale`: none of the three periods holds the server's now

local starts_now, ends_now = a, b
if now >= c then
  starts_now, ends_now = c, d
elseif now >= b then
  starts_now, ends_now = b, c
end
local stale = now < starts_now or now >= ends_now

local function read(value)
  local starts, ends, used = match(value, '^(%-?%d+) (%d+) (%d+)$')
  if not starts then
    return nil
  end
  starts, ends, used = starts * 1000000, ends * 1000000, used + 0
  if used <= MAX_USED and ends <= EXACT and ends > starts and ends - starts <= period then
    return starts, ends, used
  end
end

local function write(starts, ends, used)
  return format('%.0f %.0f %.0f', starts / 1000000, ends / 1000000, used), ends
end

-- The period that counts now, and what was used in it.
local function current(starts, ends, used)
  if not starts then
    return starts_now, ends_now, 0
  elseif now < ends and starts - now <= ends - starts then -- now, or time went back: stand still until it has caught up
    return starts, ends, used
  end
  return starts_now, ends_now, now < starts and used or 0 -- unless it has passed, the clock was stepped back
end

local function decide(cost, starts, ends, used)
  if stale then
    return starts, ends, used, 2, 0, 0, 0, 0, 0, NOT_CHARGED, 0
  end
  starts, ends, used = current(starts, ends, used)
  local left, total = ends - now, used + cost
  if total <= limit then
    return starts, ends, total, 1, limit - total, 0, left, total > 0 and left or 0, 0, starts, 0
  end
  return starts, ends, used, 0, max(limit - used, 0), left, left, left, 0, NOT_CHARGED, 0
end

local function amends()
  local function force(cost, starts, ends, used)
    starts, ends, used = current(starts, ends, used)
    return starts, ends, min(used + cost, MAX_USED)
  end

  local function refund(units, mark, _, starts, ends, used)
    starts, ends, used = current(starts, ends, used)
    local back = starts == mark and min(units, used) or 0
    return back, starts, ends, used - back
  end

  local function report(units, at, starts, ends, used)
    starts, ends, used = current(starts, ends, used)
    if at < min(starts, now) then
      return 0
    end
    return units, starts, ends, min(used + units, MAX_USED)
  end

  return force, refund, report
end

counter = { read = read, write = write, decide = decide, amends = amends, stale = stale }
