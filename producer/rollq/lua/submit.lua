-- A whole group, or jobs of it once more. Nothing changes unless everything is well.
-- reads and writes  run count queued open:<purpose> group:<group> job:<job>
-- ARGV   group size viable purpose publish_in_s, then for each job: id digest deadline_s body
-- reply  new seq | known seq | conflict id | sealed | incomplete
sound('run', 'queued')
local name, size, viable, purpose = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
sound('open:' .. purpose)
local key = typed('group:' .. name, 'hash')
local known = redis.call('HGET', key, 'seq')

for i = 6, #ARGV, 4 do
  local digest = redis.call('HGET', typed('job:' .. ARGV[i], 'hash'), 'digest')
  if digest and digest ~= ARGV[i + 1] then return { 'conflict', ARGV[i] } end
  if known and not digest then return { 'conflict', ARGV[i] } end
end
if known then
  count('resubmitted', (#ARGV - 5) / 4)
  return { 'known', known }
end
if (#ARGV - 5) / 4 ~= size then return { 'incomplete' } end
if redis.call('HGET', prefix .. 'run', 'sealed') then return { 'sealed' } end

local seq = redis.call('HINCRBY', prefix .. 'run', 'seq', 1)
local publish_at = tonumber(ARGV[5]) > 0 and now() + tonumber(ARGV[5]) or 0
redis.call('HSET', key, 'seq', seq, 'size', size, 'viable', viable, 'purpose', purpose, 'done', 0, 'dead', 0,
  'state', 'open', 'handed', 0)
redis.call('ZADD', prefix .. 'open:' .. purpose, seq, name)
for i = 6, #ARGV, 4 do
  redis.call('HSET', prefix .. 'job:' .. ARGV[i], 'state', 'queued', 'attempt', 0, 'not_before', 0,
    'digest', ARGV[i + 1], 'deadline_s', ARGV[i + 2], 'body', ARGV[i + 3])
  redis.call('ZADD', prefix .. 'queued', publish_at, ARGV[i])
end
count('submitted', size)
return { 'new', tostring(seq) }
