-- Counters kept as a sorted set of entries, whose scores are instants in µs. Beside the entries stands, with a score
-- below zero so that it never comes between them, a member "!": until when the key is shut out, if it is.
--
-- KEYS     the counter
-- NEEDS    counter.find(key) -> state or nil, counter.change(key, state) -> expiry of what is there then, or nil
-- GIVES    counter.load(key) -> state or nil, until; counter.save(key, state or nil, until);
--          counter.written(key, state) -> state: what `state` says, written at once, because only a set can be asked

-- An instant as the score of a note beside the entries, and back.
local function noted(instant)
  return text(-1 - instant)
end

local function note(key, name)
  local score = tonumber(query('ZSCORE', key, name))
  return score and score <= -1 and score >= -EXACT and -1 - score or nil
end

-- Member and score at a rank, counted from the end if below zero.
local function at_rank(key, rank)
  local found = query('ZRANGE', key, text(rank), text(rank), 'WITHSCORES') or {}
  return found[1], tonumber(found[2])
end

local function kept(counter)
  local find, change = counter.find, counter.change

  function counter.load(key)
    local state = find(key)
    return state, counter.penalty and note(key, '!') or 0
  end

  -- A key must not vanish and be touched again: while its slot is moved to another server, that fails.
  function counter.save(key, state, shut_until)
    local expires = state and change(key, state)
    if shut_until > 0 then
      if not state then
        store('DEL', key)
      end
      store('ZADD', key, noted(shut_until), '!')
      if not expires then
        store('ZREM', key, '@')
      end
      expires = max(expires or 0, shut_until)
    elseif expires and counter.penalty then
      store('ZREM', key, '!')
    end
    if expires then
      store('PEXPIRE', key, lifetime(expires))
    else
      store('DEL', key)
    end
  end

  function counter.written(key, state)
    change(key, state)
    return find(key)
  end

  return counter
end

return { kept = kept, at_rank = at_rank, note = note, noted = noted }
