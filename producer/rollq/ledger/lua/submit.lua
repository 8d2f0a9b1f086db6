-- A whole group, or jobs of it once more. Everything is entered or nothing. A repeat under the same token gets the same
-- answer. The source's cursor moves with the group it names, so that a producer knows where it was.
-- reads and writes  run count sources queued open:<purpose> group:<group> job:<job>
-- ARGV   group size viable purpose publish_in_s token source ('': none) cursor, then for each job: id digest deadline_s
--        body
-- reply  new | known | conflict id | sealed | incomplete
check_indexes()
local name, size, viable, purpose, token, source = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[7], ARGV[8]
local meta, sources, key = typed('run', 'hash'), typed('sources', 'hash'), typed('group:' .. name, 'hash')
local first, publish_in_s = 10, tonumber(ARGV[6])
local jobs = (#ARGV - first + 1) / 4
local known, submitted, resubmitted = unpack(redis.call('HMGET', key, 'seq', 'submitted', 'resubmitted'))

local function move_cursor()
  local was = stored_number(string.match(redis.call('HGET', sources, source) or '', '^%d+'))
  local is = tonumber(string.match(ARGV[9], '^%d+'))
  if source ~= '' and is > was then redis.call('HSET', sources, source, ARGV[9]) end
end

for i = first, #ARGV, 4 do
  local digest = redis.call('HGET', typed('job:' .. ARGV[i], 'hash'), 'digest')
  if digest and digest ~= ARGV[i + 1] then return { 'conflict', ARGV[i] } end
  -- A group without its job, or a job without its group. A job never starts again with the numbers of old attempts.
  if not known ~= not digest then return { 'conflict', ARGV[i] } end
end
if submitted == token then return { 'new' } end
if known then
  if resubmitted ~= token then
    redis.call('HSET', key, 'resubmitted', token)
    count('resubmitted', jobs)
  end
  move_cursor()
  return { 'known' }
end
if jobs ~= size then return { 'incomplete' } end
if redis.call('HGET', meta, 'sealed') then return { 'sealed' } end
if not whole(redis.call('HGET', meta, 'seq') or '0', 0, MOST) then damaged(meta, 'has no readable seq') end

local seq = redis.call('HINCRBY', meta, 'seq', 1)
local publish_at = publish_in_s > 0 and now() + publish_in_s or 0
redis.call('HSET', key, 'seq', seq, 'size', size, 'viable', viable, 'purpose', purpose, 'done', 0, 'dead', 0,
  'state', 'open', 'handed', 0, 'submitted', token)
redis.call('ZADD', prefix .. 'open:' .. purpose, seq, name)
for i = first, #ARGV, 4 do
  redis.call('HSET', prefix .. 'job:' .. ARGV[i], 'state', 'queued', 'attempt', 0, 'not_before', 0,
    'digest', ARGV[i + 1], 'deadline_s', ARGV[i + 2], 'body', ARGV[i + 3])
  redis.call('ZADD', prefix .. 'queued', publish_at, ARGV[i])
end
move_cursor()
count('submitted', size)
return { 'new' }
