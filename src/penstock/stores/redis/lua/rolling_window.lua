-- Rolling window: an exact log of admissions.
--
-- KEYS     a sorted set, one entry per admission: score = when, member = "<total>:<cost>", the units charged up to and
--          with it, behind a letter for how many digits they have, so that entries of one microsecond sort by total.
--          Totals grow, so units used are a difference, and when some will be free is a search by rank.
-- ARGV     limit in units, period in µs, whether to count denied: then only the newest `limit` units are kept
-- RETURNS  mark: the instant of the charge, or the later one at which time stands still

local sets = need('sets')
local at_rank = sets.at_rank

local function add_entry(key, time, total, cost)
  local digits = text(total)
  store('ZADD', key, text(time), string.char(96 + #digits) .. digits .. ':' .. text(cost))
end

local function read_entry(member, time)
  local total, cost = match(member or '', '^%l(%d+):(%d+)$')
  total, cost = tonumber(total), tonumber(cost)
  if cost and cost >= 1 and cost <= total and total <= EXACT and time >= 0 and time <= EXACT then
    return { time, total, cost }
  end
end

return function(limit, period, count_denied)
  local counter = {}

  -- The newest entry, from which a log is read.
  function counter.find(key)
    local member, time = at_rank(key, -1)
    if not member or (member == '!' and time < 0) then
      return nil
    end
    local newest = read_entry(member, time)
    if not newest then
      return discard(key)
    end
    return { key = key, newest = newest }
  end

  -- The log without what has left the window: the instant `at` which that is so, the range of scores that are gone,
  -- the oldest live entry, the totals before it and with the newest.
  local function live(state)
    local log = { at = now, base = 0, total = 0 }
    if not state then
      return log
    end
    local newest = state.newest
    if newest[1] > now + period then -- the clock was stepped: what lies ahead of now happens now
      log.stepped = true
    elseif newest[1] > now then -- time went back: stand still until it has caught up
      log.at = newest[1]
    end
    local gone = log.at - period
    log.key, log.gone, log.since = state.key, gone < 0 and '(0' or text(gone), gone < 0 and '0' or '(' .. text(gone)
    local found = call('ZRANGEBYSCORE', state.key, log.since, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
    if found[1] then
      local oldest = read_entry(found[1], tonumber(found[2]))
      if not oldest or oldest[2] > newest[2] then
        discard(state.key)
        return { at = now, base = 0, total = 0 }
      end
      log.oldest, log.base, log.total = oldest, oldest[2] - oldest[3], newest[2]
    end
    return log
  end

  -- When the entry was made with which the log reached `total`, and its rank.
  local function reached(log, total)
    local low = call('ZCOUNT', log.key, '-inf', log.gone)
    if log.oldest[2] >= total then
      return min(log.oldest[1], log.at), low
    end
    local high = call('ZCARD', log.key) - 1
    while low < high do
      local middle = floor((low + high) / 2)
      local entry = read_entry(at_rank(log.key, middle))
      if entry and entry[2] < total then
        low = middle + 1
      else
        high = middle
      end
    end
    local _, time = at_rank(log.key, low)
    return min(time, log.at), low
  end

  function counter.decide(state, cost)
    local log = live(state)
    local used, leaves = log.total - log.base, period - now
    local oldest_left = (log.oldest and min(log.oldest[1], log.at) or log.at) + leaves
    if used + cost <= limit then
      local left = used + cost > 0 and oldest_left or 0
      log.cost = cost
      return { 1, limit - used - cost, 0, left, left, 0, log.at, 0 }, cost > 0 and log or state
    end
    local retry = reached(log, log.total + cost - limit) + leaves
    local more = used <= limit and oldest_left or reached(log, log.total + 1 - limit) + leaves
    return { 0, max(limit - used, 0), retry, oldest_left, more, 0, NOT_CHARGED, 0 }, log.stepped and log or state
  end

  counter.peek = peek_by(counter.decide)

  function counter.force(state, cost)
    local log = live(state)
    log.cost, log.forced = min(cost, MAX_USED), true
    return log
  end

  -- Keep what the newest `limit` units need of the log, which has grown to `total`: nothing before can change an answer.
  local function trim(key, log, total)
    local notes, _, enough = call('ZCOUNT', key, '-inf', '(0'), reached(log, total - limit + 1)
    if enough > notes then
      store('ZREMRANGEBYRANK', key, text(notes), text(enough - 1))
    end
  end

  -- Make room in the totals for `cost` more: write the live entries again with totals that begin at theirs. Where even
  -- those leave no room, one entry that fills any limit stands for all of them.
  local function renumber(key, log, cost)
    if not log.oldest or log.total + cost <= EXACT then
      return
    end
    local found, base = call('ZRANGEBYSCORE', key, log.since, '+inf', 'WITHSCORES'), log.base
    local fits = log.total - base + cost <= EXACT
    store('ZADD', key, '-1', '@') -- so that the set is not gone in between
    store('ZREMRANGEBYSCORE', key, '0', '+inf')
    for position = 1, #found, 2 do
      local entry = fits and read_entry(found[position], tonumber(found[position + 1]))
      if entry then
        add_entry(key, entry[1], entry[2] - base, entry[3])
      end
    end
    if not fits then
      log.oldest = { log.at, MAX_USED, MAX_USED }
      base = log.total - MAX_USED
      add_entry(key, log.at, MAX_USED, MAX_USED)
    else
      log.oldest[2] = log.oldest[2] - base
    end
    store('ZREM', key, '@')
    log.base, log.total = 0, log.total - base
  end

  -- Make the set what `log` says; returns when all of it will have left the window, nil if nothing is left.
  function counter.change(key, log)
    if log.stepped then
      for _, member in ipairs(call('ZRANGEBYSCORE', key, '(' .. text(now), '+inf')) do
        store('ZADD', key, text(now), member)
      end
    end
    if log.cost then
      renumber(key, log, log.cost)
    end
    local trims = log.forced and count_denied == 1 -- what was settled stays, as its limit may have been raised since
    local decides_all = trims and log.cost >= limit -- the newest `limit` units do
    if decides_all then
      store('ZREMRANGEBYSCORE', key, '0', '+inf')
      add_entry(key, log.at, log.cost, log.cost)
    elseif log.cost then
      add_entry(key, log.at, log.total + log.cost, log.cost)
    end
    if log.gone then -- after something was added, or the set might be gone in between
      call('ZREMRANGEBYSCORE', key, '0', log.gone)
    end
    if trims and not decides_all and log.oldest then
      trim(key, log, log.total + log.cost)
    end
    local member, newest = at_rank(key, -1)
    return member and newest >= 0 and newest + period or nil
  end

  -- Entries after the one that shrinks are written again with smaller totals.
  function counter.refund(state, units, mark)
    local key, back, since = state.key, 0, text(mark)
    store('ZADD', key, '-1', '@') -- so that the set is not gone in between; goes when this is saved
    counter.change(key, live(state))
    if call('ZCOUNT', key, since, since) > 0 then
      local found = call('ZRANGEBYSCORE', key, since, '+inf', 'WITHSCORES')
      store('ZREMRANGEBYSCORE', key, since, '+inf')
      for position = 1, #found, 2 do
        local entry = read_entry(found[position], tonumber(found[position + 1])) or { 0, 0, 0 }
        local given = entry[1] == mark and min(entry[3], units - back) or 0
        back = back + given
        if entry[3] > given then
          add_entry(key, entry[1], entry[2] - back, entry[3] - given)
        end
      end
    end
    if call('ZCARD', key) > 1 then
      store('ZREM', key, '@')
    end
    return back, {}
  end

  -- Add an entry before the newest one. Entries after it are written again with larger totals.
  local function insert(key, time, cost)
    local since, before = '(' .. text(time), nil
    local found = call('ZRANGEBYSCORE', key, since, '+inf', 'WITHSCORES')
    store('ZADD', key, '-1', '@') -- so that the set is not gone in between
    store('ZREMRANGEBYSCORE', key, since, '+inf')
    for position = 1, #found, 2 do
      local entry = read_entry(found[position], tonumber(found[position + 1]))
      if entry then
        before = before or entry[2] - entry[3]
        add_entry(key, entry[1], entry[2] + cost, entry[3])
      end
    end
    add_entry(key, time, before + cost, cost)
    store('ZREM', key, '@')
  end

  function counter.report(state, units, at, key)
    local log = live(state)
    at = at < now and at or log.at
    if at <= log.at - period then
      return 0
    end
    local cost = min(units, MAX_USED)
    if not log.oldest or at >= min(state.newest[1], log.at) then
      log.at, log.cost, log.forced = at, cost, true
      return units, log
    end
    counter.change(key, log)
    renumber(key, log, cost)
    insert(key, at, cost)
    if count_denied == 1 then
      log = live(counter.find(key))
      trim(key, log, log.total)
    end
    return units, {}
  end

  return sets.kept(counter)
end
