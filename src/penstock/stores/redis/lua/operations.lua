-- Operations that are more than a plain ask, and whatever follows them: other kinds of counters, requests of several
-- asks, dry runs, requests with an id, amendments, resets.
--
-- KEYS     of the operation, by next_key(); ARGV[1] from its asks or charges on; see main.lua
-- RETURNS  `out`: the replies, packed

local ACQUIRE, ONCE, AMEND, GRANT = 1, 2, 3, 5
local STALE, STALE_UNITS = { 2, 0, 0, 0, 0, 0, NOT_CHARGED, 0 }, -EXACT - 1

-- Call a command that charges, or gives back.
local function store(...)
  call(...)
  wrote = true
end

-- What a command that reads says of `key`; nil if that is nothing, or the key holds another type.
local function query(command, key, ...)
  local reply = pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    discard(key, reply)
    return nil
  end
  return reply or nil
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

local need, made = nil, {}

local function make(name)
  --> fragments
end

-- What the fragment of that name returns; it is made when it is first needed.
function need(name)
  local fragment = made[name]
  if not fragment then
    fragment = make(name)
    made[name] = fragment
  end
  return fragment
end

for number, counter in ipairs(counters) do
  local letter, count_denied, penalty, flat, limit, period, a =
    unpack_from('<i8i8i8i8i8i8i8', quotas, 80 * number - 79)
  counter = counter and need('texts')(counter) or need(string.char(letter))(limit, period, a)
  if count_denied == 1 or penalty > 0 then
    counter = need('options')(counter, count_denied == 1, penalty)
  end
  counter.flat = flat == 1
  counters[number] = counter
end

local function next_key()
  key_number = key_number + 1
  return keys[key_number]
end

local function put(packed)
  out[#out + 1] = packed
end

local function put_answer(answer)
  put(pack(PACKED_ANSWER, unpack(answer)))
end

-- The next asks or charges; and whether the calendar of one of them does not reach to now, so that nothing may be done.
local function next_asks(count)
  local asks, stale = {}, false
  for number = 1, count do
    local quota, cost, third, fourth
    quota, cost, third, fourth, position = unpack_from('<i8i8i8i8', operations, position)
    local counter = counters[quota]
    stale = stale or counter.stale
    asks[number] = { counter = counter, key = next_key(), cost = cost, third, fourth }
  end
  return asks, stale
end

-- Decides on an ask alone, and replies.
local function put_lone(counter, key, cost, mark)
  local answer = STALE
  if not counter.stale then
    local state, after = counter.load(key), nil
    answer, after = counter.decide(state, cost, mark, key)
    if after ~= state then
      counter.save(key, after, 0)
    end
  end
  put_answer(answer)
end

while position <= last do
  local verb, count, dry
  verb, count, dry, position = unpack_from('<i8i8i8', operations, position)
  if verb == PLAIN or (verb == ACQUIRE and count == 1 and dry == 0) then
    local quota, cost, mark = count, dry, 0
    if verb == ACQUIRE then
      local _
      quota, cost, _, mark, position = unpack_from('<i8i8i8i8', operations, position)
    end
    put_lone(counters[quota], next_key(), cost, mark)
  elseif verb == ACQUIRE then
    local asks, stale = next_asks(count)
    if not stale then
      local requests = need('requests')
      local decide_or_peek = dry == 1 and requests.peek_all or requests.decide_all
      decide_or_peek(asks)
    end
    for _, ask in ipairs(asks) do
      put_answer(stale and STALE or ask.answer)
    end
  elseif verb == ONCE or verb == GRANT then
    local cost, least, most, serial, lasts = dry, count, dry, nil, nil
    serial, lasts, position = unpack_from('<i8i8', operations, position)
    count, cost = verb == GRANT and 1 or count, verb == GRANT and 0 or cost
    local key = serial >= 0 and next_key()
    local asks, stale = next_asks(count)
    if verb == GRANT then
      asks[1].least, asks[1].most = least, most
    end
    local record = stale and { at = now, serial = serial } or need('once')(asks, key, serial, lasts, cost)
    put(pack('<i8i8', record.at, record.serial))
    for number = 1, count do
      put_answer(stale and STALE or record.answers[number])
    end
    for number = 1, count do
      put(pack('<i8', stale and 0 or record.costs[number]))
    end
  elseif verb == AMEND then
    local change, units, serial, lasts, each
    change, units, serial, lasts, position = unpack_from('<i8i8i8i8', operations, position)
    local key = serial >= 0 and next_key()
    local charges, stale = next_asks(count)
    if not stale then
      local amends = need('amends')
      each = key and amends.of_record(change, charges, units, key, serial, lasts) or amends.all(change, charges)
    end
    for number = 1, count do
      put(pack('<i8', stale and STALE_UNITS or each[number]))
    end
  else -- reset
    store('DEL', next_key())
  end
end
