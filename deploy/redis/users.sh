#!/bin/sh
# Prints the users of rollq's Redis as an ACL file: one for each part, each with no more rights than it needs.
#
#   ROLLQ_WORKER_PASSWORD=... ROLLQ_PRODUCER_PASSWORD=... ROLLQ_TRAINER_PASSWORD=... ROLLQ_READER_PASSWORD=... \
#     ROLLQ_FLOWER_PASSWORD=... ROLLQ_ADMIN_PASSWORD=... deploy/redis/users.sh > users.acl
#   redis-server --aclfile users.acl --appendonly yes --maxmemory-policy noeviction
#
# The file holds hashes of the passwords. Keys that may only be read (%R~) or only be written (%W~) need Redis 7. For
# Redis 6.2, pipe the output through  sed 's/%[RW]~/~/g'. docs/deploy.md says what each user may do.
set -eu

hash() {
  eval "password=\${$1:-}"
  if [ "${#password}" -lt 16 ]; then
    echo "users.sh: $1 must have at least 16 characters; deploy/redis/passwords.sh makes some" >&2
    exit 1
  fi
  printf %s "$password" | sha256sum | cut -c 1-64
}
worker=$(hash ROLLQ_WORKER_PASSWORD)
producer=$(hash ROLLQ_PRODUCER_PASSWORD)
trainer=$(hash ROLLQ_TRAINER_PASSWORD)
reader=$(hash ROLLQ_READER_PASSWORD)
flower=$(hash ROLLQ_FLOWER_PASSWORD)
admin=$(hash ROLLQ_ADMIN_PASSWORD)

# Celery's events.
events='&/0.celeryev/*'
commands='+@connection +@transaction +@string +@hash +@list +@set +@sortedset -@dangerous -@admin
  +del +unlink +exists +type +expire +pexpire +pttl +rename +scan +eval +evalsha +script|load +script|exists
  +time +wait +info'
# The queues, whose names begin with `rollq`; those of the ledger's keys begin with `rollq:`.
sending='%W~rollq %W~rollq[^:]*'
counting='%R~rollq %R~rollq[^:]* %R~celery*'
# All of the ledger, but what it takes to submit: a run's `queued`, `leased` and `sources` can only be read.
delivery='%R~rollq:* ~rollq:{*}: ~rollq:{*}:[^qls]* ~rollq:workers'
# Celery's own keys, and the answers that Flower waits for.
asking='~_kombu.* ~unacked* ~celeryev.* ~*.reply.celery.pidbox* &/0.celery.pidbox'

# $1 user  $2 hash of its password  $3 its keys, channels and commands
user() {
  echo "user $1 reset resetchannels on #$2 -@all" $3
}
set -f # the patterns name no files
# No client can log in as `default`. It keeps its rights because Redis reads its append-only file as this user: without them,
# a restart would refuse, and so lose, every transaction in the file.
echo 'user default reset off ~* &* +@all'
user worker "$worker" "~rollq* ~_kombu.* $events $commands +publish"
user producer "$producer" "~rollq:* $sending ~_kombu.* $events $commands +publish"
user trainer "$trainer" "$delivery $commands"
# No command that writes, so none within its scripts either.
user reader "$reader" "~rollq* +@connection +@transaction +@read -@dangerous -@admin +eval +evalsha +script|load
  +script|exists +time +info"
user flower "$flower" "$counting $asking $events $commands +@pubsub"
# For people, when a script does not end or a client must go. It reads no key.
user admin "$admin" "+@connection +client +script|kill +slowlog +latency +info"
# For health checks, which need no password: it may ask whether Redis is well, and nothing else.
echo 'user health reset resetchannels on nopass -@all +ping'
