-- The run takes no more groups. Waiting consumers look again: the next batch may be the short last one. When Redis
-- has lost groups of the run, it is not sealed: its producer submits them again first.
-- reads and writes  run sources waiting:<purpose> wake:<token>
-- ARGV   for each source of the producer: name, groups that it has submitted
-- reply  ok has_groups (1: the run has or had some) | gap source groups jobs mark (of the stored cursor)
local meta = prefix .. 'run'
for i = 2, #ARGV, 2 do
  local groups, jobs, mark = read_cursor(ARGV[i])
  if groups < tonumber(ARGV[i + 1]) then
    return { 'gap', 'source', ARGV[i], 'groups', groups, 'jobs', jobs, 'mark', mark }
  end
end
allow_without_memory()
redis_call('HSET', meta, 'sealed', 1)
for _, purpose in ipairs(PURPOSES) do wake_consumers(purpose) end
return { 'ok', 'has_groups', redis_call('HEXISTS', meta, 'seq') }
