-- Sliding window: this window's counter plus the previous one's, weighted by how much of it still overlaps.
--
-- KEYS     a string "<window> <units> <previous>": the window's number since the epoch, units in it and before it
-- ARGV     limit in units, period in µs, tick in µs, ticks per period (at most 2^20)
-- RETURNS  mark: the window's end in µs

local texts = need('texts')

return function(limit, period, tick, ticks)
  local counter = {}

  function counter.parse(value)
    local window, current, previous = match(value, '^(%d+) (%d+) (%d+)$')
    local ends = window and (tonumber(window) + 1) * period
    current, previous = tonumber(current), tonumber(previous)
    return ends and ends <= EXACT and current <= MAX_USED and previous <= MAX_USED and { ends, current, previous } or nil
  end

  function counter.format(state)
    return format('%.0f %.0f %.0f', state[1] / period - 1, state[2], state[3])
  end

  function counter.expiry(state)
    return state[1] + period
  end

  -- The window that counts now, and the units in it and before it.
  local function counters(state)
    local ends, current, previous = 0, 0, 0
    if state then
      ends, current, previous = state[1], state[2], state[3]
    end
    local left = ends - now
    if left > 0 and left <= 2 * period then -- now, or time went back: stand still until it has caught up
      return ends, current, previous
    end
    local ends_now = now - fmod(now, period) + period
    if left <= 0 then
      return ends_now, 0, ends == ends_now - period and current or 0
    end
    return ends_now, min(current + previous, limit), 0 -- the clock was stepped back: all of it counts as of now
  end

  -- When `units` will be free that are not free now, if nobody else comes.
  local function free_at(units, current, previous, ends)
    if current + units <= limit then -- as soon as less of the previous window overlaps
      local overlap = floor((limit - current - units) * ticks / previous)
      return min(ends - period + (ticks - overlap) * tick, ends)
    end
    local overlap = floor((limit - units) * ticks / current) -- not before this window has become the previous one
    return min(ends + (ticks - overlap) * tick, ends + period)
  end

  function counter.decide(state, cost)
    local ends, current, previous = counters(state)
    local left, free = ends - now, limit - current
    if previous > 0 then
      local elapsed = max(period - left, 0) -- below zero while time stands still
      free = free - ceil_div(previous * (ticks - floor(elapsed / tick)), ticks)
    end
    if cost <= free then
      current, free = current + cost, free - cost
      local more = 0
      if current > 0 or previous > 0 then
        more = free_at(free + 1, current, previous, ends) - now
      end
      return { 1, free, 0, left, more, 0, ends, 0 }, { ends, current, previous }
    end
    free = max(free, 0)
    local retry = free_at(cost, current, previous, ends) - now
    local more = cost == free + 1 and retry or free_at(free + 1, current, previous, ends) - now
    local kept = state and state[1] == ends and state or { ends, current, previous } -- pulled back once
    return { 0, free, retry, left, more, 0, NOT_CHARGED, 0 }, kept
  end

  counter.peek = texts.peek_by(counter.decide)

  function counter.force(state, cost)
    local ends, current, previous = counters(state)
    return { ends, min(current + cost, MAX_USED), previous }
  end

  function counter.refund(state, units, mark)
    local ends, current, previous = counters(state)
    if mark == ends then
      local back = min(units, current)
      return back, { ends, current - back, previous }
    end
    local back = mark == ends - period and min(units, previous) or 0
    return back, { ends, current, previous - back }
  end

  return texts.kept(counter)
end
