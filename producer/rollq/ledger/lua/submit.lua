-- A whole group, or jobs of it once more. Nothing changes unless everything is well. A repeat under the same token gets
-- the same answer. The source's cursor moves with the group it names, so that a producer knows where it was.
-- reads and writes  run count sources queued open:<purpose> group:<group> job:<job>
-- ARGV   group size viable purpose publish_in_s token source ('': none) cursor, then for each job: id digest deadline_s
--        body
-- reply  new seq | known seq | conflict id | sealed | incomplete
sound('run', 'queued')
local name, size, viable, purpose = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
sound('open:' .. purpose)
local key = typed('group:' .. name, 'hash')
local got = redis.call('HMGET', key, 'seq', 'submitted', 'resubmitted')
local known, token, jobs = got[1], ARGV[6], (#ARGV - 8) / 4
local source, sources = ARGV[7], typed('sources', 'hash')

local function move_cursor()
  local was = whole(string.match(redis.call('HGET', sources, source) or '', '^%d+'), 0, MOST) or 0
  local is = tonumber(string.match(ARGV[8], '^%d+'))
  if source ~= '' and is > was then redis.call('HSET', sources, source, ARGV[8]) end
end

for i = 9, #ARGV, 4 do
  local digest = redis.call('HGET', typed('job:' .. ARGV[i], 'hash'), 'digest')
  if digest and digest ~= ARGV[i + 1] then return { 'conflict', ARGV[i] } end
  -- One without the other: a key was lost. A job that is there is never begun anew under its old attempts.
  if known and not digest then return { 'conflict', ARGV[i] } end
  if digest and not known then return { 'conflict', ARGV[i] } end
end
if got[2] == token then return { 'new', known } end
if known then
  if got[3] ~= token then
    redis.call('HSET', key, 'resubmitted', token)
    count('resubmitted', jobs)
  end
  move_cursor()
  return { 'known', known }
end
if jobs ~= size then return { 'incomplete' } end
if redis.call('HGET', prefix .. 'run', 'sealed') then return { 'sealed' } end
local last = redis.call('HGET', prefix .. 'run', 'seq') or '0'
if not whole(last, 0, MOST) then damaged(prefix .. 'run', 'has no sequence') end

local seq = redis.call('HINCRBY', prefix .. 'run', 'seq', 1)
local publish_at = tonumber(ARGV[5]) > 0 and now() + tonumber(ARGV[5]) or 0
redis.call('HSET', key, 'seq', seq, 'size', size, 'viable', viable, 'purpose', purpose, 'done', 0, 'dead', 0,
  'state', 'open', 'handed', 0, 'submitted', token)
redis.call('ZADD', prefix .. 'open:' .. purpose, seq, name)
for i = 9, #ARGV, 4 do
  redis.call('HSET', prefix .. 'job:' .. ARGV[i], 'state', 'queued', 'attempt', 0, 'not_before', 0,
    'digest', ARGV[i + 1], 'deadline_s', ARGV[i + 2], 'body', ARGV[i + 3])
  redis.call('ZADD', prefix .. 'queued', publish_at, ARGV[i])
end
move_cursor()
count('submitted', size)
count('groups')
return { 'new', tostring(seq) }
