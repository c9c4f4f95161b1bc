-- GCRA (also `token_bucket` and `min_interval`): remembers only when the bucket will be full again.
--
-- KEYS     a string "<µs> <part> <rate>": full again at µs + part/rate, rate in units per period
-- ARGV     as bucket.lua
-- RETURNS  mark: the instant of the charge

local texts, buckets = need('texts'), need('bucket')

return function(limit, period, capacity, full_us, full_part, share)
  local shared, counter = buckets.shared(limit, period, capacity, full_us, full_part, share), {}

  function counter.parse(value)
    local us, part, rate = match(value, '^(%d+) (%d+) (%d+)$')
    us, part, rate = tonumber(us), tonumber(part), tonumber(rate)
    return us and us < EXACT and buckets.is_rate(part, rate) and { us, part, rate } or nil
  end

  function counter.format(state)
    return format('%.0f %.0f %.0f', state[1], state[2], state[3])
  end

  function counter.expiry(state)
    return shared.ceil(state[1], state[2])
  end

  function counter.decide(state, cost)
    local us, part = shared.owed(state)
    local total_us, total_part, fits = shared.charge(us, part, cost)
    if not fits then
      -- What was pulled back, or is paid back at another rate from now on, must be kept so for the answer to hold.
      local changed = not state or shared.is_full(us, part) or state[3] ~= limit
      return shared.refusal(us, part, cost, 0), changed and { now + us, part, limit } or state
    end
    local left, more = shared.outlook(total_us, total_part)
    local answer = { 1, left, 0, shared.ceil(total_us, total_part), more, 0, now, 0 }
    return answer, { now + total_us, total_part, limit }
  end

  counter.peek = texts.peek_by(counter.decide)

  function counter.force(state, cost)
    local us, part = shared.owed(state)
    us, part = shared.force(us, part, cost)
    return { now + us, part, limit }
  end

  function counter.refund(state, units, mark)
    local us, part = shared.owed(state)
    local back
    back, us, part = shared.refund(us, part, units, max(now - mark, 0))
    return back, { now + us, part, limit }
  end

  return texts.kept(counter)
end
