-- Counters that are one string, as other operations than a plain ask want them: a state is a table or nil.
--
-- NEEDS    of the algorithm, where x, y, z are its state, up to three numbers, or nil:
--            read(text) -> x, y, z, or nil if that makes no sense; write(x, y, z) -> text, expiry
--            decide(cost, x, y, z) -> x, y, z after it, then the eight numbers of the answer
--            force(cost, x, y, z) -> x, y, z; refund(units, mark, part of the mark, x, y, z) -> units back, x, y, z
-- GIVES    counter.load(key) -> state or nil, until; counter.save(key, state or nil, until); decide, peek, force, refund;
--          counter.written(key, state) -> state: the same, as nothing needs to be written before it can be read

-- The `peek` that follows from `decide`: ask with the cost and without, keep nothing.
local function peek_by(decide)
  return function(state, cost)
    local with, without = decide(state, cost), decide(state, 0)
    local allowed, retry_after = with[1], with[3]
    if cost == 0 then -- what is overdrawn refuses everything but nothing
      allowed, retry_after = 1, 0
    end
    return { allowed, without[2], retry_after, without[4], without[5], with[6], NOT_CHARGED, 0 }
  end
end

local EMPTY = {}

local function numbers(state)
  return unpack(state or EMPTY, 1, 3)
end

local function kept(algorithm)
  local counter = { queues = algorithm.queues, stale = algorithm.stale }

  function counter.load(key)
    local x, y, z, shut_until = load(algorithm, key)
    return x and { x, y, z }, shut_until or 0
  end

  function counter.save(key, state, shut_until)
    local own, expires = '', 0
    if state then
      own, expires = algorithm.write(numbers(state))
    end
    if shut_until > 0 then
      own, expires = own .. '!' .. text(shut_until), max(expires, shut_until)
    end
    if own ~= '' then
      call('SET', key, own, 'PX', lifetime(expires))
    else
      call('DEL', key)
    end
  end

  function counter.decide(state, cost)
    local found = { algorithm.decide(cost, numbers(state)) }
    local same = state and state[1] == found[1] and state[2] == found[2] and state[3] == found[3]
    return { unpack(found, 4, 11) }, same and state or { unpack(found, 1, 3) }
  end

  counter.peek = peek_by(counter.decide)

  function counter.force(state, cost)
    return { algorithm.force(cost, numbers(state)) }
  end

  function counter.refund(state, units, mark, part)
    local back, x, y, z = algorithm.refund(units, mark, part, numbers(state))
    return back, { x, y, z }
  end

  function counter.written(_, state)
    return state
  end

  return counter
end

return { kept = kept, peek_by = peek_by }
