-- Counters kept as one string: the algorithm's own text, and behind a "!" until when the key is shut out, if it is.
--
-- KEYS     the counter
-- NEEDS    counter.parse(text) -> state or nil, counter.format(state) -> text, counter.expiry(state) -> instant
-- GIVES    counter.load(key) -> state or nil, until; counter.save(key, state or nil, until);
--          counter.written(key, state) -> state: the same, as nothing needs to be written before it can be read

local function kept(counter)
  local parse, write, expiry = counter.parse, counter.format, counter.expiry

  function counter.load(key)
    local value = query('GET', key)
    if not value then
      return nil, 0
    end
    local state, shut_until = parse(value), 0
    if not state then
      local own, digits = match(value, '^([%x ]*)!(%d+)$')
      shut_until = tonumber(digits)
      state = own and own ~= '' and parse(own) or nil
      if not shut_until or shut_until > EXACT or (own ~= '' and not state) then
        discard(key)
        return nil, 0
      end
    end
    return state, shut_until
  end

  function counter.save(key, state, shut_until)
    if shut_until > 0 then
      local own, expires = state and write(state) or '', state and expiry(state) or 0
      call('SET', key, own .. '!' .. text(shut_until), 'PX', lifetime(max(expires, shut_until)))
    elseif state then
      call('SET', key, write(state), 'PX', lifetime(expiry(state)))
    else
      call('DEL', key)
    end
  end

  function counter.written(_, state)
    return state
  end

  return counter
end

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

return { kept = kept, peek_by = peek_by }
