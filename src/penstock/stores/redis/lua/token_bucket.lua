-- Token bucket: holds up to `burst` units and refills at `limit` per `period`, lazily.
--
-- KEYS     a string "<at> <µs> <part> <rate>": the time that pays back what was owed at an instant, at that rate; in
--          hexadecimal, because in decimal these four would cost most counters another 16 bytes
-- ARGV     as bucket.lua
-- RETURNS  mark: the instant of the charge, or the later one at which time stands still

local texts, buckets = need('texts'), need('bucket')

return function(limit, period, capacity, full_us, full_part)
  local shared, counter = buckets.shared(limit, period, capacity, full_us, full_part), {}

  function counter.parse(value)
    local at, us, part, rate = match(value, '^(%x+) (%x+) (%x+) (%x+)$')
    if not at then
      return nil
    end
    at, us, part, rate = tonumber(at, 16), tonumber(us, 16), tonumber(part, 16), tonumber(rate, 16)
    return at + us < EXACT and buckets.is_rate(part, rate) and { at, us, part, rate } or nil
  end

  function counter.format(state)
    return format('%x %x %x %x', state[1], state[2], state[3], state[4])
  end

  function counter.expiry(state)
    return state[1] + shared.ceil(state[2], state[3])
  end

  -- What is owed, and the instant at which that holds: now, or later while time stands still.
  local function owed(state)
    if not state then
      return 0, 0, now
    end
    local at, us, part, rate = state[1], state[2], state[3], state[4]
    if at <= now then
      us, at = us - (now - at), now
      if us < 0 then
        return 0, 0, now
      end
    elseif at - now > full_us then -- ahead by more than a full burst: the clock was stepped
      at = now
    end
    us, part = shared.level(us, part, rate)
    return us, part, at
  end

  function counter.decide(state, cost)
    local us, part, at = owed(state)
    local total_us, total_part, fits = shared.charge(us, part, cost)
    local lag = at - now
    if not fits then
      -- What was pulled back, or is paid back at another rate from now on, must be kept so for the answer to hold.
      local changed = not state or shared.is_full(us, part) or at < state[1] or state[4] ~= limit
      return shared.refusal(us, part, cost, lag), changed and { at, us, part, limit } or state
    end
    local left, more = shared.outlook(total_us, total_part)
    local full_after = lag + shared.ceil(total_us, total_part)
    more = (total_us > 0 or total_part > 0) and lag + more or 0
    return { 1, left, 0, full_after, more, 0, at, 0 }, { at, total_us, total_part, limit }
  end

  counter.peek = texts.peek_by(counter.decide)

  function counter.force(state, cost)
    local us, part, at = owed(state)
    us, part = shared.force(us, part, cost)
    return { at, us, part, limit }
  end

  function counter.refund(state, units, mark)
    local us, part, at = owed(state)
    local back
    back, us, part = shared.refund(us, part, units, max(at - mark, 0))
    return back, { at, us, part, limit }
  end

  return texts.kept(counter)
end
