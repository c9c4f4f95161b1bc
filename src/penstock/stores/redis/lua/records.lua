-- Records of admitted requests that had an id: asked again they answer again and charge nothing.
--
-- KEYS     a string of numbers: serial, expires at, decided at, cost that can be given back, whether settled; then for
--          each ask its answer (8 numbers) and cost. With whether settled, times two, how many repeats count on the
--          charge beside the first request: each may be refused elsewhere, and the last of them takes the charge back
-- RETURNS  a table {serial, expires_at, at, cost, settled (0 or 1), repeats, answers, costs}

local RECORD_HEAD, RECORD_ASK = 5, 9

-- The record, which must be of `count` asks; of any number if that is not said.
local function read(key, count)
  local value = query('GET', key)
  if not value then
    return nil
  end
  local numbers = {}
  for word in string.gmatch(value, '%S+') do
    local number = match(word, '^%-?%d+$') and tonumber(word)
    numbers[#numbers + 1] = number and number <= EXACT and number >= -EXACT and number or nil
  end
  local asks = (#numbers - RECORD_HEAD) / RECORD_ASK
  if asks < 1 or asks ~= (count or floor(asks)) then
    return discard(key)
  end
  local record = { answers = {}, costs = {} }
  record.serial, record.expires_at, record.at, record.cost, record.settled = unpack(numbers, 1, RECORD_HEAD)
  record.repeats, record.settled = floor(record.settled / 2), record.settled % 2
  for number = 1, asks do
    local start = RECORD_HEAD + RECORD_ASK * (number - 1)
    record.answers[number] = { unpack(numbers, start + 1, start + 8) }
    record.costs[number] = numbers[start + 9]
  end
  return record
end

local function write(key, record)
  local words = {}
  local function add(number)
    words[#words + 1] = text(number)
  end
  local settled = record.settled + 2 * record.repeats
  for _, number in ipairs({ record.serial, record.expires_at, record.at, record.cost, settled }) do
    add(number)
  end
  for number, answer in ipairs(record.answers) do
    for _, field in ipairs(answer) do
      add(field)
    end
    add(record.costs[number])
  end
  store('SET', key, table.concat(words, ' '), 'PX', lifetime(record.expires_at))
end

return { read = read, write = write }
