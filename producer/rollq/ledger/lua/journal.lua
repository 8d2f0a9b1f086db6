-- Writing to journals; used by append.lua and complete.lua. Their last arguments are the entries: a text with one digit
-- an entry (1: it ends a turn), the digest and the content of the prompt that the group shares (empty: none), the blobs.

-- The arguments from position `first` on.
local function read_entries(first)
  return { turns = ARGV[first], digest = ARGV[first + 1], content = ARGV[first + 2], first = first + 3,
    count = #ARGV - first - 2 }
end

-- The journal's length; also whether the entries, the first at `index`, do not fit behind what is there.
local function conflict(journal, index, entries)
  local length = redis.call('LLEN', journal)
  if index > length then return length, true end
  for i = index, math.min(length, index + entries.count) - 1 do
    if redis.call('LINDEX', journal, i) ~= ARGV[entries.first + i - index] then return length, true end
  end
  return length, false
end

-- Appends what is not there yet. The first new entry after a replay shows that the attempt goes on with the journal.
local function push(id, job, journal, index, length, entries)
  local reach, kept, turned = unpack(redis.call('HMGET', job, 'reach', 'kept', 'turned'))
  local from, turns, farthest = math.max(length - index, 0), 0, 0
  if from >= entries.count then return end
  if entries.digest ~= '' then
    redis.call('HSETNX', prefix .. 'prompts:' .. parse(id), entries.digest, entries.content)
  end
  for i = from, entries.count - 1 do
    redis.call('RPUSH', journal, ARGV[entries.first + i])
    if string.sub(entries.turns, i + 1, i + 1) == '1' then turns, farthest = turns + 1, index + i + 1 end
  end
  if turns > 0 then redis.pcall('HINCRBY', job, 'turned', turns) end
  if farthest > stored_number(reach) then
    -- One turn farther than all attempts before: a job that makes progress is not what kills workers.
    redis.call('HSET', job, 'reach', farthest, 'fail:worker', 0)
  end
  kept = whole(kept, 2, MOST)
  if kept and length <= kept and kept < index + entries.count then
    count('resumed')
    count('turns_saved', whole(turned, 0, MOST) or 0)
  end
end
