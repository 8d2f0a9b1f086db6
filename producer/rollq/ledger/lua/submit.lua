-- A whole group, or jobs of it once more. Everything is entered or nothing. A repeat under the same token gets the same
-- answer. The source's cursor moves with the group it names, so that a producer knows where it was. A cursor that does
-- not follow the stored one shows that Redis has lost groups of the source.
-- reads and writes  run count sources queued open:<purpose> ready:<purpose> held:<purpose> group:<group> acked:<group>
--                   job:<job> stale
-- ARGV   group size viable purpose send_in_s token source ('': none) cursor ahead (0: no limit) queue spare
--        body (of the first job) template_kwargs (as JSON) adapter, then for each job: id digest deadline_s body
--        ('': the first job's)
-- reply  new | known | acked | conflict id | gap groups jobs mark (of the stored cursor) | sealed | incomplete | full |
--        other name theirs ours (of template_kwargs and adapter, which the run's first group pins)
local name, size, viable, purpose, token, source = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[7], ARGV[8]
local meta, sources, key = prefix .. 'run', prefix .. 'sources', prefix .. 'group:' .. name
local first, spare, send_in_s, ahead = 16, tonumber(ARGV[12]), tonumber(ARGV[6]), tonumber(ARGV[10])
local jobs = (#ARGV - first + 1) / 4
local seq, submitted, resubmitted = unpack(redis_call('HMGET', key, 'seq', 'submitted', 'resubmitted'))
local acked = not seq and acked_record(name)
local stored_groups, stored_jobs, stored_mark = read_cursor(source)
local cursor_groups = tonumber(string.match(ARGV[9], '^%d+'))

local function move_cursor()
  if source ~= '' and cursor_groups > stored_groups then redis_call('HSET', sources, source, ARGV[9]) end
end

for i = first, #ARGV, 4 do
  local digest = redis_call('HGET', prefix .. 'job:' .. ARGV[i], 'digest')
  local _, sample = parse(ARGV[i])
  if acked then
    digest = sample < acked.members and string.sub(acked.digests, sample * 8 + 1, sample * 8 + 8)
    if digest ~= string.sub(ARGV[i + 1], 1, 8) then return { 'conflict', 'id', ARGV[i] } end
  else
    if digest and digest ~= ARGV[i + 1] then return { 'conflict', 'id', ARGV[i] } end
    -- A group without its job, or a job without its group. A job never starts again with the numbers of old attempts.
    if not seq ~= not digest then return { 'conflict', 'id', ARGV[i] } end
  end
end
if submitted == token then return { 'new' } end
if source ~= '' and cursor_groups > stored_groups + 1 then
  return { 'gap', 'groups', stored_groups, 'jobs', stored_jobs, 'mark', stored_mark }
end
if seq or acked then
  if seq and resubmitted ~= token then
    redis_call('HSET', key, 'resubmitted', token)
  end
  if acked or resubmitted ~= token then count('resubmitted', jobs) end
  move_cursor()
  return { acked and 'acked' or 'known' }
end
if jobs ~= size + spare then return { 'incomplete' } end
if redis_call('HGET', meta, 'sealed') then return { 'sealed' } end
local groups = redis_call('HGET', meta, 'seq')
local pins = { { 'template_kwargs', '{}', ARGV[14] }, { 'adapter', '', ARGV[15] } } -- name, default, this group's
for _, pin in ipairs(pins) do
  local theirs = redis_call('HGET', meta, pin[1]) or (groups and pin[2]) or pin[3]
  if theirs ~= pin[3] then return { 'other', 'name', pin[1], 'theirs', theirs, 'ours', pin[3] } end
end
local unacknowledged = 0
for _, place in ipairs({ 'open:', 'ready:', 'held:' }) do
  unacknowledged = unacknowledged + redis_call('ZCARD', prefix .. place .. purpose)
end
if ahead > 0 and unacknowledged >= ahead then
  redis_call('HSET', meta, 'full:' .. purpose, seconds(now()) .. ' ' .. ahead)
  return { 'full' }
end
local bound = purpose == 'train' and read_admission()
if bound and capacity(bound) <= 0 then
  redis_call('HSET', meta, 'full:train', seconds(now()) .. ' 0')
  return { 'full' }
end

local stale = prefix .. 'stale'
seq = redis_call('HINCRBY', meta, 'seq', 1) -- the first write, so that it is refused without memory
redis_call('SREM', stale, name) -- that of a group which was forgotten
local send_at = send_in_s > 0 and now() + send_in_s or 0
for _, pin in ipairs(pins) do
  if pin[3] ~= pin[2] then redis_call('HSET', meta, pin[1], pin[3]) end
end
redis_call('HSET', key, 'seq', seq, 'size', size, 'spare', spare, 'viable', viable, 'purpose', purpose, 'done', 0, 'dead', 0,
  'state', 'open', 'handed', 0, 'submitted', token, 'queue', ARGV[11], 'body', ARGV[13], 'at', seconds(now()))
redis_call('ZADD', prefix .. 'open:' .. purpose, seq, name)
for i = first, #ARGV, 4 do
  local job = prefix .. 'job:' .. ARGV[i]
  redis_call('HSET', job, 'state', 'queued', 'attempt', 0, 'digest', ARGV[i + 1], 'deadline_s', ARGV[i + 2])
  if ARGV[i + 3] ~= '' then redis_call('HSET', job, 'body', ARGV[i + 3]) end
  redis_call('ZADD', prefix .. 'queued', send_at, ARGV[i])
end
move_cursor()
count('submitted', jobs)
return { 'new' }
