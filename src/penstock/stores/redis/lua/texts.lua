-- Counters that are one string, as other operations than a plain ask want them: a state is a table or nil.
--
-- NEEDS    of the algorithm, where x, y, z are its state, up to three numbers, or nil:
--            read(text) -> x, y, z, or nil if that makes no sense
--            write(x, y, z) -> text, expiry; `windowed`: the expiry follows from x, so that it stays as long as x does
--            decide(cost, x, y, z) -> x, y, z after it, then the eight numbers of the answer
--            amends() -> force(cost, x, y, z) -> x, y, z
--                        refund(units, mark, part of the mark, x, y, z) -> units that came back, x, y, z
--                        report(units, instant, x, y, z) -> units that still count, x, y, z
-- GIVES    counter.load(key) -> state or nil, until; counter.save(key, state or nil, until); decide, peek, force,
--          refund, report; counter.written(key, state) -> state: the same, as nothing needs to be written before it can be read

local function numbers(state)
  if state then
    return state[1], state[2], state[3]
  end
end

return function(algorithm)
  local decide_by_numbers, write = algorithm.decide, algorithm.write
  local force, refund, report = algorithm.amends()

  local function decide(state, cost)
    local x, y, z, allowed, remaining, retry, reset, more, delay, mark, part = decide_by_numbers(cost, numbers(state))
    local same = state and state[1] == x and state[2] == y and state[3] == z
    return { allowed, remaining, retry, reset, more, delay, mark, part }, same and state or { x, y, z }
  end

  return {
    queues = algorithm.queues,
    drains = algorithm.drains,
    stale = algorithm.stale,
    decide = decide,
    peek = peek_by(decide),
    load = function(key)
      local x, y, z, shut_until = load(algorithm, key)
      return x and { x, y, z }, shut_until or 0
    end,
    save = function(key, state, shut_until)
      local own, expires = '', 0
      if state then
        own, expires = write(numbers(state))
      end
      if shut_until > 0 then
        own, expires = own .. '!' .. text(shut_until), max(expires, shut_until)
      end
      if own ~= '' then
        store('SET', key, own, 'PX', lifetime(expires))
      else
        store('DEL', key)
      end
    end,
    force = function(state, cost)
      return { force(cost, numbers(state)) }
    end,
    refund = function(state, units, mark, part)
      local back, x, y, z = refund(units, mark, part, numbers(state))
      return back, { x, y, z }
    end,
    report = function(state, units, at)
      local charged, x, y, z = report(units, at, numbers(state))
      return charged, { x, y, z }
    end,
    written = function(_, state)
      return state
    end,
  }
end
