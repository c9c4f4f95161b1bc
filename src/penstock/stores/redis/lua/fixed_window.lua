-- Fixed window: one counter per window, windows aligned to the Unix epoch.
--
-- KEYS     a string "<window> <used>": the window's number since the epoch, units used in it
-- ARGV     limit in units, period in µs
-- RETURNS  mark: the window's end in µs

local texts = need('texts')

return function(limit, period)
  local counter = {}

  function counter.parse(value)
    local window, used = match(value, '^(%d+) (%d+)$')
    local ends, units = window and (tonumber(window) + 1) * period, tonumber(used)
    return ends and ends <= EXACT and units <= MAX_USED and { ends, units } or nil
  end

  function counter.format(state)
    return text(state[1] / period - 1) .. ' ' .. text(state[2])
  end

  function counter.expiry(state)
    return state[1]
  end

  -- The window that counts now, and what was used in it.
  local function current(state)
    local ends, used = 0, 0
    if state then
      ends, used = state[1], state[2]
    end
    if ends <= now then
      return now - fmod(now, period) + period, 0
    elseif ends - now <= 2 * period then -- now, or time went back: stand still until it has caught up
      return ends, used
    end
    return now - fmod(now, period) + period, used -- the clock was stepped back
  end

  function counter.decide(state, cost)
    local ends, used = current(state)
    local left, total = ends - now, used + cost
    if total <= limit then
      return { 1, limit - total, 0, left, total > 0 and left or 0, 0, ends, 0 }, { ends, total }
    end
    local kept = state and state[1] == ends and state or { ends, used } -- pulled back once, or it lies ahead for ever
    return { 0, max(limit - used, 0), left, left, left, 0, NOT_CHARGED, 0 }, kept
  end

  counter.peek = texts.peek_by(counter.decide)

  function counter.force(state, cost)
    local ends, used = current(state)
    return { ends, min(used + cost, MAX_USED) }
  end

  function counter.refund(state, units, mark)
    local ends, used = current(state)
    local back = ends == mark and min(units, used) or 0
    return back, { ends, used - back }
  end

  return texts.kept(counter)
end
