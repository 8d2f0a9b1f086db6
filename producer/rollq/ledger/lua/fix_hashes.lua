-- The first worker of a run fixes the tokenizer and the chat template of its episodes.
-- reads and writes  run queued
-- ARGV   tokenizer_hash template_hash
-- reply  the run's tokenizer_hash and template_hash; nothing for an unknown run, which stays unknown
local meta = typed('run', 'hash')
if redis.call('EXISTS', meta, prefix .. 'queued') == 0 then return {} end
redis.call('HSETNX', meta, 'tokenizer_hash', ARGV[2])
redis.call('HSETNX', meta, 'template_hash', ARGV[3])
return redis.call('HMGET', meta, 'tokenizer_hash', 'template_hash')
