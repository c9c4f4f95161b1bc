-- What a refusal may leave behind, for any algorithm: `count denied` and `penalty`.
--
-- ARGV     whether to count what was refused; penalty in µs, 0 if there is none
-- RETURNS  nothing of their own: both wrap a counter, and give one with the same functions

-- Charge what is refused as well. That is kept whatever becomes of the request, so a set may be written at once.
local function counting_denied(plain)
  local counting = {}
  for name, value in pairs(plain) do
    counting[name] = value
  end

  function counting.decide(state, cost, mark, key)
    local answer, after = plain.decide(state, cost, mark, key)
    if answer[1] == 1 or cost == 0 then
      return answer, after
    end
    local charged = plain.written(key, plain.force(state, cost))
    return plain.peek(charged, cost), charged
  end

  return counting
end

-- Shut a key out for `penalty` once it was refused. State: {shut out until, the counter's own state}.
local function penalised(inner, plain, penalty)
  local counter = { holds = inner.holds, queues = inner.queues, drains = inner.drains, stale = inner.stale }
  plain.penalty = true

  function counter.load(key)
    local below, shut_until = inner.load(key)
    return (below or shut_until > 0) and { shut_until, below } or nil
  end

  function counter.save(key, state)
    inner.save(key, state[2], state[1])
  end

  local function refused(answer, left)
    return { 0, 0, max(answer[3], left), max(answer[4], left), max(answer[5], left), 0, NOT_CHARGED, 0 }
  end

  -- Being refused while shut out neither prolongs it nor counts, so the plain algorithm is asked.
  local function shut_out(state, cost, key)
    local shut_until, below = state[1], state[2]
    local answer, after = plain.decide(below, cost, 0, key)
    if answer[1] == 1 or cost == 0 then
      answer, after = plain.peek(below, cost), below
    end
    if shut_until - now > penalty then -- the clock was stepped back, or the penalty was shortened
      shut_until = now + penalty
    end
    local same = shut_until == state[1] and after == below
    return refused(answer, shut_until - now), same and state or { shut_until, after }
  end

  function counter.decide(state, cost, mark, key)
    local shut_until, below = 0, nil
    if state then
      shut_until, below = state[1], state[2]
    end
    if shut_until > now then
      return shut_out(state, cost, key)
    end
    local answer, after = inner.decide(below, cost, mark, key)
    if answer[1] == 1 then
      return answer, { 0, after }
    end
    return refused(answer, penalty), { now + penalty, after }
  end

  function counter.peek(state, cost)
    if state and state[1] > now then
      return (shut_out(state, cost))
    end
    return inner.peek(state and state[2], cost)
  end

  function counter.force(state, cost)
    return { state and state[1] or 0, inner.force(state and state[2], cost) }
  end

  function counter.refund(state, units, mark, part)
    local back, below = 0, nil
    if state[2] then
      back, below = inner.refund(state[2], units, mark, part)
    end
    return back, { state[1], below }
  end

  function counter.report(state, units, at, key)
    local charged, below = inner.report(state and state[2], units, at, key)
    return charged, { state and state[1] or 0, below }
  end

  function counter.renew(state, mark, part)
    local renewed = state[2] and inner.renew(state[2], mark, part)
    return renewed and { state[1], renewed } or nil
  end

  return counter
end

return function(plain, counts_denied, penalty)
  local counter = counts_denied and counting_denied(plain) or plain
  return penalty > 0 and penalised(counter, plain, penalty) or counter
end
