-- Fixed window: one counter per window, windows aligned to the Unix epoch.
--
-- KEYS     a string "<window> <used>": the window's number since the epoch, units used in it
-- ARGV     limit in units, period in µs
-- RETURNS  mark: the window's end in µs

local known_window, known_ends -- the window that was read last, because most values are of the same

local function read(value)
  local window, used = match(value, '^(%d+) (%d+)$')
  if not window then
    return nil
  elseif window ~= known_window then
    known_window, known_ends = window, (window + 1) * period
  end
  used = used + 0
  if known_ends <= EXACT and used <= MAX_USED then
    return known_ends, used
  end
end

local function write(ends, used)
  if ends ~= known_ends then
    known_window, known_ends = text(ends / period - 1), ends
  end
  return known_window .. ' ' .. text(used), ends
end

-- The window that counts now, and what was used in it.
local function current(ends, used)
  if ends and ends > now then
    if ends - now <= 2 * period then -- now, or time went back: stand still until it has caught up
      return ends, used
    end
    return now - now % period + period, used -- the clock was stepped back
  end
  return now - now % period + period, 0
end

local function decide(cost, ends, used)
  ends, used = current(ends, used)
  local left, total = ends - now, used + cost
  if total <= limit then
    return ends, total, nil, 1, limit - total, 0, left, total > 0 and left or 0, 0, ends, 0
  end
  return ends, used, nil, 0, max(limit - used, 0), left, left, left, 0, NOT_CHARGED, 0
end

local function amends()
  local function force(cost, ends, used)
    ends, used = current(ends, used)
    return ends, min(used + cost, MAX_USED)
  end

  local function refund(units, mark, _, ends, used)
    ends, used = current(ends, used)
    local back = ends == mark and min(units, used) or 0
    return back, ends, used - back
  end

  local function report(units, at, ends, used)
    ends, used = current(ends, used)
    if at < min(ends - period, now) then
      return 0
    end
    return units, ends, min(used + units, MAX_USED)
  end

  return force, refund, report
end

counter = { read = read, write = write, decide = decide, amends = amends, windowed = true }
