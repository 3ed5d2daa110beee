//! Takes the URL of a Redis server, cluster or sentinel group apart. Strict: what
//! it does not know is an error, and no error repeats the URL, since that may
//! hold a password.

use super::settings::{Address, Login, RedisSettingsError, Topology};

const FORM: &str = "write redis://user:password@host:port/database, with rediss for TLS, \
     or redis+cluster://host:port,host:port, or redis+sentinel://host:port,host:port/master";

pub(super) struct Parsed {
    pub(super) topology: Topology,
    pub(super) tls: bool,
    pub(super) login: Login,
    pub(super) database: u16,
}

pub(super) fn parse(url: &str) -> Result<Parsed, RedisSettingsError> {
    let wrong = |problem: &str| RedisSettingsError::new(problem, FORM);
    let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("the URL has no scheme"))?;
    let (transport, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
    let tls = match transport {
        "redis" => false,
        "rediss" => true,
        _ => return Err(wrong("the URL's scheme is not redis or rediss")),
    };
    if rest.contains(['?', '#']) {
        return Err(wrong("the URL has a query or a fragment"));
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (parse_login(login)?, hosts),
        None => (Login::default(), authority),
    };
    let port = if kind == "sentinel" { 26379 } else { 6379 };
    let hosts: Vec<Address> =
        hosts.split(',').map(|host| parse_address(host, port)).collect::<Result<_, _>>()?;
    let (topology, database) = match kind {
        "" => {
            let [host] = <[Address; 1]>::try_from(hosts).map_err(|_| {
                wrong("the URL names several hosts, but neither cluster nor sentinel")
            })?;
            (Topology::One(host), path)
        }
        "cluster" => (Topology::Cluster(hosts), path),
        "sentinel" => {
            let (master, database) = path.split_once('/').unwrap_or((path, ""));
            if master.is_empty() {
                return Err(wrong("the URL names sentinels, but no master"));
            }
            (Topology::Sentinel { master: decode(master)?, sentinels: hosts }, database)
        }
        _ => return Err(wrong("the URL's scheme has something other than cluster or sentinel")),
    };
    let database = match database.trim_end_matches('/') {
        "" => 0,
        number => number.parse().map_err(|_| wrong("the URL's database is not a number"))?,
    };
    Ok(Parsed { topology, tls, login, database })
}

fn parse_login(text: &str) -> Result<Login, RedisSettingsError> {
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, Some(decode(password)?)),
        None => (text, None),
    };
    let user = if user.is_empty() { None } else { Some(decode(user)?) };
    Ok(Login { user, password })
}

fn parse_address(text: &str, default: u16) -> Result<Address, RedisSettingsError> {
    let wrong = |problem: &str| RedisSettingsError::new(problem, FORM);
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) =
            rest.split_once(']').ok_or_else(|| wrong("an IPv6 address has no closing bracket"))?;
        (host, rest.strip_prefix(':'))
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(wrong("a host is missing"));
    }
    let port = match port {
        None => default,
        Some(port) => port
            .parse()
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| wrong("a port is not a number from 1 to 65535"))?,
    };
    Ok(Address { host: host.to_owned(), port })
}

fn decode(text: &str) -> Result<String, RedisSettingsError> {
    let wrong = || {
        let problem = "something in the URL is not percent-encoded as it should be";
        RedisSettingsError::new(problem, "write % as %25, @ as %40, / as %2F, : as %3A")
    };
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2).ok_or_else(wrong)?;
        let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
        rest = after;
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_each_kind_are_taken_apart() {
        let one = parse("rediss://me:p%40ss%3A@db.example/3").expect("valid");
        assert_eq!(one.topology, Topology::One(Address { host: "db.example".into(), port: 6379 }));
        assert!(one.tls);
        assert_eq!((one.login.user.as_deref(), one.database), (Some("me"), 3));
        assert_eq!(one.login.password.as_deref(), Some("p@ss:"));
        let cluster = parse("redis+cluster://:pw@[::1]:7000,b:7001").expect("valid");
        let first = Address { host: "::1".into(), port: 7000 };
        let second = Address { host: "b".into(), port: 7001 };
        assert_eq!(first.to_string(), "[::1]:7000");
        assert_eq!(cluster.topology, Topology::Cluster(vec![first, second]));
        assert_eq!(cluster.login.user, None);
        let sentinel = parse("redis+sentinel://a,b:1/main/4").expect("valid");
        let sentinels =
            vec![Address { host: "a".into(), port: 26379 }, Address { host: "b".into(), port: 1 }];
        assert_eq!(sentinel.topology, Topology::Sentinel { master: "main".into(), sentinels });
        assert_eq!(sentinel.database, 4);
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said_without_repeating_it() {
        let wrong = [
            ("host:6379", "no scheme"),
            ("http://secret@host", "scheme is not"),
            ("redis+tls://secret@host", "other than cluster or sentinel"),
            ("redis://:secret@host:0", "port"),
            ("redis://:secret@host:99999", "port"),
            ("redis://:secret@", "host is missing"),
            ("redis://:secret@host/one", "database"),
            ("redis://:secret@a,b", "several hosts"),
            ("redis://:secret%4@host", "percent-encoded"),
            ("redis://:secret@host?timeout=5", "query"),
            ("redis+sentinel://:secret@host", "no master"),
            ("redis://:secret@[::1", "bracket"),
        ];
        for (url, expected) in wrong {
            let error = parse(url).err().expect(url).to_string();
            assert!(error.contains(expected), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
