-- What token bucket, GCRA and leaky bucket share: units owed as the time that pays them back, (µs, part).
--
-- ARGV     limit in units, period in µs, the bucket's capacity in units, the time that fills it: full µs, full part; and
--          what limit and period have in common: after a change of limit, parts are rounded up to a multiple of it

local function bind_shared(limit, period, capacity, full_us, full_part, share)
  local shared = {}

  -- The time that pays `units` back.
  local function span(units)
    return muldiv(period, units, 0, limit)
  end

  -- The whole units that a time pays back.
  local function units_in(us, part)
    local scaled = us * limit + part
    local units = floor(scaled / period)
    if scaled > EXACT then -- rounded, so by one too many or too few
      local span_us, span_part = span(units)
      if span_us > us or (span_us == us and span_part > part) then
        return units - 1
      end
      span_us, span_part = span(units + 1)
      if span_us < us or (span_us == us and span_part <= part) then
        return units + 1
      end
    end
    return units
  end

  local function minus(us, part, less_us, less_part)
    if part >= less_part then
      return us - less_us, part - less_part
    end
    return us - less_us - 1, part - less_part + limit
  end

  -- A time in whole microseconds, rounded up.
  function shared.ceil(us, part)
    return part > 0 and us + 1 or us
  end

  -- What (µs, part) at `rate` is at the limit of today, at most a full bucket.
  function shared.level(us, part, rate)
    if rate ~= limit then
      us, part = muldiv(us, rate, part, limit)
      part = ceil_div(part, share) * share
      if part == limit then
        us, part = us + 1, 0
      end
    end
    if us > full_us or (us == full_us and part > full_part) then
      return full_us, full_part
    end
    return us, part
  end

  -- What is owed now, if nothing will be owed at state[1] + state[2]/state[3].
  function shared.owed(state)
    if not state or state[1] < now then
      return 0, 0
    end
    return shared.level(state[1] - now, state[2], state[3])
  end

  -- What is owed after `units` more, and whether the bucket holds that.
  function shared.charge(us, part, units)
    local more_us, more_part = span(units)
    us, part = us + more_us, part + more_part
    if part >= limit then
      us, part = us + 1, part - limit
    end
    return us, part, us < full_us or (us == full_us and part <= full_part)
  end

  function shared.force(us, part, units)
    local fits
    us, part, fits = shared.charge(us, part, min(units, capacity))
    if fits then
      return us, part
    end
    return full_us, full_part
  end

  -- Units left while (µs, part) are owed, and the time until there is one more.
  function shared.outlook(us, part)
    local room_us, room_part = minus(full_us, full_part, us, part)
    local left = units_in(room_us, room_part)
    if us == 0 and part == 0 then
      return left, 0
    end
    local next_us, next_part = span(left + 1)
    return left, shared.ceil(minus(next_us, next_part, room_us, room_part))
  end

  -- How a bucket says no: to `cost`, when (µs, part) are owed as of `lag` from now.
  function shared.refusal(us, part, cost, lag)
    local room_us, room_part = minus(full_us, full_part, us, part)
    local left, more = shared.outlook(us, part)
    local cost_us, cost_part = span(cost)
    local retry = shared.ceil(minus(cost_us, cost_part, room_us, room_part))
    return { 0, left, lag + retry, lag + shared.ceil(us, part), lag + more, 0, NOT_CHARGED, 0 }
  end

  -- Take `units` back of which `age` has paid a part: units that came back, and what is owed then.
  function shared.refund(us, part, units, age)
    local back_us, back_part = span(units)
    back_us = back_us - age
    if back_us < 0 then
      return 0, us, part
    end
    if back_us > us or (back_us == us and back_part > part) then
      back_us, back_part = us, part
    end
    local whole = units_in(back_us, back_part)
    local whole_us, whole_part = span(whole)
    local units_back = (whole_us == back_us and whole_part == back_part) and whole or whole + 1
    return units_back, minus(us, part, back_us, back_part)
  end

  function shared.is_full(us, part)
    return us == full_us and part == full_part
  end

  return shared
end

-- Whether a stored part of a microsecond and the rate it was written at can be.
local function is_rate(part, rate)
  return rate and rate >= 1 and rate <= 4294967296 and part < rate
end

return { shared = bind_shared, is_rate = is_rate }
