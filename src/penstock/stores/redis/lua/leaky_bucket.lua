-- Leaky bucket: a queue that lets requests out at an even pace, each told how long to wait.
--
-- KEYS     a string "<µs> <part> <rate>": the queue is empty at µs + part/rate, rate in units per period
-- ARGV     as bucket.lua
-- RETURNS  mark and its part: the queue's tail after the charge, (µs, part); only the tail can be given back

local buckets, gcra = need('bucket'), need('gcra')

return function(limit, period, capacity, full_us, full_part, share)
  local shared = buckets.shared(limit, period, capacity, full_us, full_part, share)
  local counter = gcra(limit, period, capacity, full_us, full_part, share)

  function counter.decide(state, cost)
    local us, part = shared.owed(state)
    local total_us, total_part, fits = shared.charge(us, part, cost)
    if not fits then
      local changed = not state or shared.is_full(us, part) or state[3] ~= limit -- pulled back, or another rate
      return shared.refusal(us, part, cost, 0), changed and { now + us, part, limit } or state
    end
    local left, more = shared.outlook(total_us, total_part)
    local tail = now + total_us
    local delay = shared.ceil(us, part)
    local answer = { 1, left, 0, shared.ceil(total_us, total_part), more, delay, tail, total_part }
    return answer, { tail, total_part, limit }
  end

  function counter.peek(state, cost)
    local us, part = shared.owed(state)
    local _, _, fits = shared.charge(us, part, cost)
    if cost > 0 and not fits then
      return shared.refusal(us, part, cost, 0)
    end
    local left, more = shared.outlook(us, part)
    return { 1, left, 0, shared.ceil(us, part), more, shared.ceil(us, part), NOT_CHARGED, 0 }
  end

  function counter.refund(state, units, mark, mark_part)
    if state[1] ~= mark or state[2] ~= mark_part or state[3] ~= limit then
      return 0, state
    end
    local us, part = shared.owed(state)
    local back
    back, us, part = shared.refund(us, part, units, 0) -- what has been served cannot be given back
    return back, { now + us, part, limit }
  end

  counter.queues = true
  return counter
end
