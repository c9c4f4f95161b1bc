-- Operations that are more than a plain ask, and whatever follows them: other kinds of counters, requests of several asks,
-- dry runs, requests with an id, amendments, resets.
--
-- KEYS     of the operation, by next_key(); ARGV[1] from its asks or charges on; see main.lua
-- RETURNS  `out`: the replies, packed

local STALE, STALE_UNITS = { 2, 0, 0, 0, 0, 0, NOT_CHARGED, 0 }, -EXACT - 1

-- What a command that reads says of `key`; nil if that is nothing, or the key holds another type.
local function query(command, key, ...)
  local reply = pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    discard(key, reply)
    return nil
  end
  return reply or nil
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
  counter = counter and need('texts').kept(counter) or need(string.char(letter))(limit, period, a)
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

-- Replies to so many asks.
local function put_answers(asks, stale)
  for _, ask in ipairs(asks) do
    put(pack(PACKED_ANSWER, unpack(stale and STALE or ask.answer)))
  end
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

local function plain(quota, cost)
  local counter = counters[quota]
  local ask = { counter = counter, key = next_key(), cost = cost, 0, 0 }
  if not counter.stale then
    need('requests').decide_all({ ask })
  end
  put_answers({ ask }, counter.stale)
end

local function acquire(count, dry)
  local asks, stale = next_asks(count)
  if not stale then
    local requests = need('requests')
    local decide_or_peek = dry == 1 and requests.peek_all or requests.decide_all
    decide_or_peek(asks)
  end
  put_answers(asks, stale)
end

local function once(count)
  local serial, lasts
  serial, lasts, position = unpack_from('<i8i8', operations, position)
  local key, asks, stale = next_key(), next_asks(count)
  local record = stale and { at = now, serial = serial } or need('once')(asks, key, serial, lasts)
  put(pack('<i8i8', record.at, record.serial))
  for number = 1, count do
    put(pack(PACKED_ANSWER, unpack(stale and STALE or record.answers[number])))
  end
  for number = 1, count do
    put(pack('<i8', stale and 0 or record.costs[number]))
  end
end

local function amend(count)
  local verb, units, serial, lasts, each
  verb, units, serial, lasts, position = unpack_from('<i8i8i8i8', operations, position)
  local key = serial >= 0 and next_key()
  local charges, stale = next_asks(count)
  if not stale then
    local amends = need('amends')
    each = key and amends.of_record(verb, charges, units, key, serial, lasts) or amends.all(verb, charges)
  end
  for number = 1, count do
    put(pack('<i8', stale and STALE_UNITS or each[number]))
  end
end

local function reset()
  call('DEL', next_key())
end

local verbs = { [PLAIN] = plain, acquire, once, amend, reset }

while position <= last do
  local verb, second, third
  verb, second, third, position = unpack_from('<i8i8i8', operations, position)
  verbs[verb](second, third)
end
