//! Servers, each with a client that ends it; both are followed.

use super::{Oracle, Package, Program, debian};

const POSTGRES: &[Package] = &[Package::Service {
    file: "/usr/lib/postgresql/15/bin/postgres",
    package: "postgresql-15",
    service: "postgresql.service",
}];
const MARIADB: &[Package] =
    &[Package::Service { file: "/usr/sbin/mariadbd", package: "mariadb-server", service: "mariadb.service" }];
const NGINX: &[Package] = &[
    Package::Service { file: "/usr/sbin/nginx", package: "nginx-light", service: "nginx.service" },
    debian("/usr/bin/curl", "curl"),
];
const REDIS: &[Package] = &[
    Package::Service {
        file: "/usr/bin/redis-server",
        package: "redis-server",
        service: "redis-server.service",
    },
    debian("/usr/bin/redis-cli", "redis-tools"),
];
const MEMCACHED: &[Package] =
    &[Package::Service { file: "/usr/bin/memcached", package: "memcached", service: "memcached.service" }];

pub(super) const PROGRAMS: &[Program] = &[
    // It is its own client, for one session.
    Program::new(
        "postgres",
        POSTGRES,
        &["/usr/bin/setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups",
          "/usr/lib/postgresql/15/bin/postgres", "--single", "-D", "{folder}/data", "postgres"],
    )
    .prepared(&[
        "mkdir data && chown postgres data && chmod 755 .",
        "setpriv --reuid=postgres --regid=postgres --clear-groups /usr/lib/postgresql/15/bin/initdb -D data -A trust",
    ]),
    Program::new(
        "mariadb",
        MARIADB,
        &["/bin/sh", "-c",
          "printf '%s\\n' 'create table test.t(a int);' 'insert into test.t values (1), (2);' 'select sum(a) from test.t;' | \
           /usr/sbin/mariadbd --no-defaults --bootstrap --datadir={folder}/data --user=root --innodb-buffer-pool-size=8M 2>/dev/null"],
    )
    .prepared(&[
        "mariadb-install-db --no-defaults --datadir=$PWD/data --user=root --skip-test-db --auth-root-authentication-method=normal >/dev/null",
        "mkdir -p data/test",
    ]),
    Program::new(
        "nginx",
        NGINX,
        &["/bin/sh", "-c",
          "nginx -p {folder} -e error.log -c nginx.conf & until [ -S nginx.sock ]; do sleep 0.1; done; sleep 0.1; \
           curl -s --unix-socket nginx.sock http://world/; kill $!; wait $!"],
    )
    .prepared(&[
        "echo hello > index.html; chmod 755 .",
        "printf 'daemon off; master_process off; user root; pid nginx.pid; events {} http { access_log off; server { listen unix:%s/nginx.sock; root %s; } }' $PWD $PWD > nginx.conf",
    ]),
    Program::new(
        "redis",
        REDIS,
        &["/bin/sh", "-c",
          "redis-server --port 0 --unixsocket {folder}/redis.sock --save '' >/dev/null & \
           until [ -S redis.sock ]; do sleep 0.1; done; \
           seq 200 | sed 's/.*/set k& v&/' | redis-cli -s redis.sock >/dev/null; redis-cli -s redis.sock dbsize; \
           redis-cli -s redis.sock shutdown nosave; wait $!"],
    )
    .compared_with(Oracle::CounterOfAll)
    .in_tests(),
    Program::new(
        "memcached",
        MEMCACHED,
        &["/bin/sh", "-c",
          "memcached -u root -s {folder}/memcached.sock -t 2 & until [ -S memcached.sock ]; do sleep 0.1; done; \
           perl -MIO::Socket::UNIX -e '$s = IO::Socket::UNIX->new(\"memcached.sock\"); \
             for (1 .. 200) { print $s \"set k$_ 0 0 2\\r\\nab\\r\\n\"; <$s> } print $s \"get k7\\r\\n\"; print scalar <$s>'; \
           kill $!; wait $!; true"],
    ),
];
