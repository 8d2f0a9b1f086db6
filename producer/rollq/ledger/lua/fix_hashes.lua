-- The first worker of a run fixes what its episodes are rendered with.
-- reads and writes  run queued
-- ARGV   tokenizer_hash template_hash
-- reply  the run's tokenizer_hash and template_hash; nothing for an unknown run, which stays unknown
sound('run')
local run = prefix .. 'run'
if redis.call('EXISTS', run, prefix .. 'queued') == 0 then return {} end
redis.call('HSETNX', run, 'tokenizer_hash', ARGV[1])
redis.call('HSETNX', run, 'template_hash', ARGV[2])
return redis.call('HMGET', run, 'tokenizer_hash', 'template_hash')
