-- Calendar: one counter per day, week, month or year of a time zone.
--
-- KEYS     a string "<start> <end> <used>": the period in seconds since the epoch, units used in it
-- ARGV     limit in units, longest period in µs, the boundaries of three periods around the caller's clock in µs
-- RETURNS  mark: the start of the period in µs. `counter.stale`: none of the three periods holds the server's now

local texts = need('texts')

return function(limit, longest, first, second, third, fourth)
  local counter = {}
  local starts_now, ends_now
  if now < second then
    starts_now, ends_now = first, second
  elseif now < third then
    starts_now, ends_now = second, third
  else
    starts_now, ends_now = third, fourth
  end
  counter.stale = now < starts_now or now >= ends_now

  function counter.parse(value)
    local starts, ends, used = match(value, '^(%-?%d+) (%d+) (%d+)$')
    starts, ends, used = tonumber(starts), tonumber(ends), tonumber(used)
    if not used or used > MAX_USED or ends * 1000000 > EXACT then
      return nil
    end
    starts, ends = starts * 1000000, ends * 1000000
    return ends > starts and ends - starts <= longest and { starts, ends, used } or nil
  end

  function counter.format(state)
    return format('%.0f %.0f %.0f', state[1] / 1000000, state[2] / 1000000, state[3])
  end

  function counter.expiry(state)
    return state[2]
  end

  -- The period that counts now, and what was used in it.
  local function current(state)
    if state then
      local starts, ends, used = state[1], state[2], state[3]
      if now < ends and starts - now <= ends - starts then -- now, or time went back: stand still until it has caught up
        return starts, ends, used
      elseif now < starts then -- the clock was stepped back
        return starts_now, ends_now, used
      end
    end
    return starts_now, ends_now, 0
  end

  function counter.decide(state, cost)
    local starts, ends, used = current(state)
    local left, total = ends - now, used + cost
    if total <= limit then
      return { 1, limit - total, 0, left, total > 0 and left or 0, 0, starts, 0 }, { starts, ends, total }
    end
    local kept = state and state[1] == starts and state or { starts, ends, used } -- pulled back once
    return { 0, max(limit - used, 0), left, left, left, 0, NOT_CHARGED, 0 }, kept
  end

  counter.peek = texts.peek_by(counter.decide)

  function counter.force(state, cost)
    local starts, ends, used = current(state)
    return { starts, ends, min(used + cost, MAX_USED) }
  end

  function counter.refund(state, units, mark)
    local starts, ends, used = current(state)
    local back = starts == mark and min(units, used) or 0
    return back, { starts, ends, used - back }
  end

  return texts.kept(counter)
end
