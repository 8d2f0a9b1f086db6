-- Writing to journals; used by append.lua and complete.lua. Their last arguments are the entries: a text with one digit
-- an entry (1: it ends a turn), the digest and the content of the prompt that the group shares (empty: none), the blobs.

local TURN = 49 -- the digit 1
local AT_ONCE = 1000 -- Lua's unpack has a limit

-- The arguments from position `first` on.
local function read_entries(first)
  return { turns = ARGV[first], digest = ARGV[first + 1], content = ARGV[first + 2], first = first + 3,
    count = #ARGV - first - 2 }
end

-- The journal's length; also whether the entries, the first at `index`, do not fit behind what is there.
local function conflict(journal, index, entries)
  local length = redis_call('LLEN', journal)
  if index > length then return length, true end
  for i = index, math.min(length, index + entries.count) - 1 do
    if redis_call('LINDEX', journal, i) ~= ARGV[entries.first + i - index] then return length, true end
  end
  return length, false
end

-- Appends what is not there yet, and returns what changes in the job's record because of it: names and values. `reach`,
-- `kept` and `turned` are what it holds. The first new entry after a replay shows that the attempt goes on with the
-- journal.
local function push(id, journal, index, length, entries, reach, kept, turned)
  local from, turns, farthest, changes = math.max(length - index, 0), 0, 0, {}
  if from >= entries.count then return changes end
  if entries.digest ~= '' then
    redis_call('HSETNX', prefix .. 'prompts:' .. parse(id), entries.digest, entries.content)
  end
  for first = entries.first + from, #ARGV, AT_ONCE do
    redis_call('RPUSH', journal, unpack(ARGV, first, math.min(first + AT_ONCE - 1, #ARGV)))
  end
  for i = from + 1, entries.count do
    if string.byte(entries.turns, i) == TURN then turns, farthest = turns + 1, index + i end
  end
  turned = number(turned, prefix .. 'job:' .. id)
  if turns > 0 then changes = { 'turned', turned + turns } end
  if farthest > number(reach, prefix .. 'job:' .. id) then
    -- One turn farther than all attempts before: a job that makes progress is not what kills workers.
    changes = { 'turned', turned + turns, 'reach', farthest, 'fail:worker', 0 }
  end
  kept = number(kept, prefix .. 'job:' .. id)
  if kept >= 2 and length <= kept and kept < index + entries.count then
    count('resumed')
    count('turns_saved', turned)
  end
  return changes
end
