-- Sliding window: this window's counter plus the previous one's, weighted by how much of it still overlaps.
--
-- KEYS     a string "<window> <units> <previous>": the window's number since the epoch, units in it and before it
-- ARGV     limit in units, period in µs, tick in µs, ticks per period (at most 2^20)
-- RETURNS  mark: the window's end in µs

local tick, ticks = a, b
local known_window, known_ends -- the window that was read last, because most values are of the same
local known_before, known_previous -- and the units before it

local function read(value)
  local window, current, before = match(value, '^(%d+) (%d+) (%d+)$')
  if not window then
    return nil
  elseif window ~= known_window then
    known_window, known_ends = window, (window + 1) * period
  end
  current, known_before, known_previous = current + 0, before, before + 0
  if known_ends <= EXACT and current <= MAX_USED and known_previous <= MAX_USED then
    return known_ends, current, known_previous
  end
end

local function write(ends, current, previous)
  if ends ~= known_ends then
    known_window, known_ends = text(ends / period - 1), ends
  end
  if previous ~= known_previous then
    known_before, known_previous = text(previous), previous
  end
  return known_window .. ' ' .. text(current) .. ' ' .. known_before, ends + period
end

-- The window that counts now, and the units in it and before it.
local function counters(ends, current, previous)
  local left = ends and ends - now or 0
  if left > 0 and left <= 2 * period then -- now, or time went back: stand still until it has caught up
    return ends, current, previous
  end
  local ends_now = now - now % period + period
  if left <= 0 then
    return ends_now, 0, ends == ends_now - period and current or 0
  end
  return ends_now, min(current + previous, limit), 0 -- the clock was stepped back: all of it counts as of now
end

-- How long until `units` will be free that are not free now, if no other request comes.
local function free_in(units, current, previous, left)
  if current + units <= limit then -- as soon as less of the previous window overlaps
    local overlap = floor((limit - current - units) * ticks / previous)
    return min(left - period + (ticks - overlap) * tick, left)
  end
  local overlap = floor((limit - units) * ticks / current) -- not before this window has become the previous one
  return min(left + (ticks - overlap) * tick, left + period)
end

local function decide(cost, ends, current, previous)
  ends, current, previous = counters(ends, current, previous)
  local left, free = ends - now, limit - current
  if previous > 0 then
    local elapsed = max(period - left, 0) -- below zero while time stands still
    free = free - ceil(previous * (ticks - floor(elapsed / tick)) / ticks)
  end
  if cost <= free then
    current, free = current + cost, free - cost
    local more = 0
    if current > 0 or previous > 0 then
      more = free_in(free + 1, current, previous, left)
    end
    return ends, current, previous, 1, free, 0, left, more, 0, ends, 0
  end
  free = max(free, 0)
  local retry = free_in(cost, current, previous, left)
  local more = cost == free + 1 and retry or free_in(free + 1, current, previous, left)
  return ends, current, previous, 0, free, retry, left, more, 0, NOT_CHARGED, 0
end

local function amends()
  local function force(cost, ends, current, previous)
    ends, current, previous = counters(ends, current, previous)
    return ends, min(current + cost, MAX_USED), previous
  end

  local function refund(units, mark, _, ends, current, previous)
    ends, current, previous = counters(ends, current, previous)
    if mark == ends then
      local back = min(units, current)
      return back, ends, current - back, previous
    end
    local back = mark == ends - period and min(units, previous) or 0
    return back, ends, current, previous - back
  end

  local function report(units, at, ends, current, previous)
    ends, current, previous = counters(ends, current, previous)
    if at >= min(ends - period, now) then
      return units, ends, min(current + units, MAX_USED), previous
    elseif at >= ends - 2 * period then
      return units, ends, current, min(previous + units, MAX_USED)
    end
    return 0
  end

  return force, refund, report
end

counter = { read = read, write = write, decide = decide, amends = amends, windowed = true }
