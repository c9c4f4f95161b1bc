-- Concurrency: places that are held, and come back when they are released or their time is up.
--
-- KEYS     a sorted set, one entry per place: score = when it expires, member = "<mark>:<ttl>". Beside them a note "@":
--          when the set last changed, because after a step back no place may last longer than its ttl from now
-- ARGV     limit in places, ttl in µs; with each ask the mark that its place will have, chosen by the caller
-- RETURNS  mark and its part: the place's mark and its ttl in µs

local sets = need('sets')
local at_rank, note, noted = sets.at_rank, sets.note, sets.noted

local function read_place(member)
  local mark, ttl = match(member or '', '^(%d+):(%d+)$')
  return mark and tonumber(ttl) <= EXACT and tonumber(ttl) or nil
end

return function(limit, ttl)
  local counter = { holds = true }

  function counter.find(key)
    local member, ends = at_rank(key, -1)
    if not member or (member == '!' and ends < 0) then
      return nil
    end
    local longest, changed_at = read_place(member), note(key, '@')
    if not longest or not changed_at or ends > EXACT or (changed_at <= now and ends > now + longest) then
      return discard(key)
    end
    return { key = key, changed_at = changed_at }
  end

  -- All places that are still held after time went back: {when it expires, member}, the earliest first.
  local function cut_short(key)
    local found, places = call('ZRANGEBYSCORE', key, '(' .. text(now), '+inf', 'WITHSCORES'), {}
    for position = 1, #found, 2 do
      local most = now + (read_place(found[position]) or 0)
      places[#places + 1] = { min(tonumber(found[position + 1]), most), found[position] }
    end
    table.sort(places, function(one, other)
      return one[1] < other[1]
    end)
    return places
  end

  -- The places still held: how many, and `nth(n)`, when the n-th of them expires. `changed`: not all that were kept.
  local function live(state)
    if not state then
      return { count = 0 }
    end
    local key = state.key
    if state.changed_at > now then
      local places = cut_short(key)
      local function nth(n)
        return places[n][1]
      end
      return { key = key, count = #places, nth = nth, places = places, changed = true }
    end
    local count = call('ZCOUNT', key, '(' .. text(now), '+inf')
    local function nth(n)
      local _, ends = at_rank(key, n - 1 - count)
      return ends
    end
    return { key = key, count = count, nth = nth, changed = call('ZCOUNT', key, '0', text(now)) > 0 }
  end

  local function look(held, cost)
    local count = held.count
    local left = count > 0 and held.nth(1) - now or 0
    if count < limit then
      return { 1, limit - count, 0, left, left, 0, NOT_CHARGED, 0 }
    end
    local free = held.nth(count - limit + 1) - now
    return { cost == 0 and 1 or 0, 0, cost == 0 and 0 or free, left, free, 0, NOT_CHARGED, 0 }
  end

  function counter.decide(state, cost, mark)
    local held = live(state)
    if cost == 0 or held.count >= limit then
      return look(held, cost), held.changed and held or state
    end
    local left = held.count > 0 and min(held.nth(1) - now, ttl) or ttl
    held.place = { now + ttl, text(mark) .. ':' .. text(ttl) }
    return { 1, limit - held.count - 1, 0, left, left, 0, mark, ttl }, held
  end

  function counter.peek(state, cost)
    return look(live(state), cost)
  end

  function counter.force(state)
    return state -- a place that was not granted cannot be held
  end

  function counter.report()
    return 0 -- a place that is held elsewhere is not held here
  end

  local function is_held(key, member)
    return (tonumber(call('ZSCORE', key, member)) or 0) > now
  end

  function counter.refund(state, _, mark, own_ttl)
    local held, member = live(state), text(mark) .. ':' .. text(own_ttl)
    held.free = member
    return is_held(state.key, member) and 1 or 0, held
  end

  function counter.renew(state, mark, own_ttl)
    local held, member = live(state), text(mark) .. ':' .. text(own_ttl)
    held.place = { now + own_ttl, member }
    return is_held(state.key, member) and held or nil
  end

  -- Make the set what `held` says; returns when the last place expires, nil if none is held.
  function counter.change(key, held)
    if held.changed_at then -- as it was found
      local _, ends = at_rank(key, -1)
      return ends
    end
    if held.places then
      for _, place in ipairs(held.places) do
        store('ZADD', key, text(place[1]), place[2])
      end
    end
    call('ZREMRANGEBYSCORE', key, '0', text(now))
    if held.free then
      store('ZREM', key, held.free)
    end
    if held.place then
      store('ZADD', key, text(held.place[1]), held.place[2])
    end
    local member, ends = at_rank(key, -1)
    if not read_place(member) then
      return nil -- what is left goes when this is saved: no sooner, or the set would be gone
    end
    store('ZADD', key, noted(now), '@')
    return ends
  end

  return sets.kept(counter)
end
