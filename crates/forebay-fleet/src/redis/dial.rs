//! Gets a connection, whichever way the servers stand to each other. Everything
//! here is bounded by the dial timeout; nothing is tried twice.

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, PushInfo, RedisConnectionInfo, RedisResult, TlsCertificates, TlsMode, Value,
};
use tokio::sync::mpsc::UnboundedSender;

use super::fault::{at, away, describe, unusable};
use super::settings::{Address, Login, RedisSettings, RedisSettingsError, Topology};
use super::wait::within;
use crate::keeper::KeeperError;

/// A connection that carries many calls at once.
#[derive(Clone)]
pub(super) enum Conn {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Conn {
    pub(super) async fn query(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            Self::One(connection) => cmd.query_async(connection).await,
            Self::Cluster(connection) => cmd.query_async(connection).await,
        }
    }
}

/// Dials.
pub(super) struct Dialler {
    settings: RedisSettings,
    certificates: Option<TlsCertificates>,
}

impl Dialler {
    pub(super) fn new(settings: RedisSettings) -> Result<Self, RedisSettingsError> {
        settings.validate()?;
        let certificates = settings.certificates()?;
        if settings.tls && rustls::crypto::CryptoProvider::get_default().is_none() {
            // lost only to somebody who has just done the same
            drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        }
        let dialler = Self { settings, certificates };
        // what can be wrong with certificates shows here and not at the first call
        let probe = Address { host: "localhost".to_owned(), port: 1 };
        dialler.client(&probe, &Login::default(), 0, ProtocolVersion::RESP2).map_err(|error| {
            RedisSettingsError::new(error.to_string(), "check the certificate files")
        })?;
        Ok(dialler)
    }

    pub(super) fn settings(&self) -> &RedisSettings {
        &self.settings
    }

    /// A connection for calls.
    pub(super) async fn connect(&self) -> Result<Conn, KeeperError> {
        let connecting = async {
            match &self.settings.topology {
                Topology::One(address) => self.one(address).await.map(Conn::One),
                Topology::Cluster(nodes) => self.cluster(nodes).await.map(Conn::Cluster),
                Topology::Sentinel { .. } => {
                    let primary = self.primary().await?;
                    self.one(&primary).await.map(Conn::One)
                }
            }
        };
        let limit = self.settings.dial_timeout;
        within(limit, connecting).await.unwrap_or_else(|| {
            Err(away(format!("no connection to {} within {limit:?}", self.whereabouts())))
        })
    }

    /// A connection that messages of channels are passed on from. In a cluster any
    /// node will do, since all hear of every message.
    pub(super) async fn subscriber(
        &self,
        pushes: UnboundedSender<PushInfo>,
    ) -> Result<MultiplexedConnection, KeeperError> {
        let config = self.config().set_push_sender(pushes);
        let connecting = async {
            let address = self.any_address().await?;
            let (login, database) = (&self.settings.login, self.settings.database);
            let client = self.client(&address, login, database, ProtocolVersion::RESP3);
            let client = client.map_err(|error| describe(&error))?;
            let connected = client.get_multiplexed_async_connection_with_config(&config).await;
            connected.map_err(|error| describe(&error))
        };
        let limit = self.settings.dial_timeout;
        within(limit, connecting)
            .await
            .unwrap_or_else(|| Err(away("no connection for announcements in time")))
    }

    /// A plain connection to one server of those that there are, to ask about it.
    pub(super) async fn any_server(&self) -> Result<MultiplexedConnection, KeeperError> {
        let connecting = async { self.one(&self.any_address().await?).await };
        let limit = self.settings.dial_timeout;
        within(limit, connecting).await.unwrap_or_else(|| {
            Err(away(format!("no connection to {} within {limit:?}", self.whereabouts())))
        })
    }

    async fn any_address(&self) -> Result<Address, KeeperError> {
        match &self.settings.topology {
            Topology::One(address) => Ok(address.clone()),
            Topology::Sentinel { .. } => self.primary().await,
            Topology::Cluster(nodes) => {
                let mut last = away("no node of the cluster is named");
                for node in nodes {
                    match self.one(node).await {
                        Ok(_) => return Ok(node.clone()),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    async fn one(&self, address: &Address) -> Result<MultiplexedConnection, KeeperError> {
        let (login, database) = (&self.settings.login, self.settings.database);
        let connected = async {
            self.client(address, login, database, ProtocolVersion::RESP2)?
                .get_multiplexed_async_connection_with_config(&self.config())
                .await
        };
        connected.await.map_err(|error| {
            if self.settings.tls && error.is_timeout() {
                let reason =
                    "no answer in time; if there is no TLS at this port, begin the URL with redis";
                return at(address, away(reason));
            }
            at(address, describe(&error))
        })
    }

    async fn cluster(&self, nodes: &[Address]) -> Result<ClusterConnection, KeeperError> {
        let timeout = self.settings.response_timeout();
        let nodes = nodes.iter().map(|node| self.address(node));
        let mut builder = ClusterClient::builder(nodes)
            .connection_timeout(self.settings.dial_timeout)
            .response_timeout(timeout)
            .overall_response_timeout(Some(timeout))
            .tcp_settings(tcp(&self.settings))
            .retries(4)
            .min_retry_wait(20)
            .max_retry_wait(500);
        if let Some(user) = &self.settings.login.user {
            builder = builder.username(user);
        }
        if let Some(password) = &self.settings.login.password {
            builder = builder.password(password);
        }
        if self.settings.tls {
            builder = builder.tls(TlsMode::Secure);
        }
        if let Some(certificates) = &self.certificates {
            builder = builder.certs(certificates.clone());
        }
        let client = builder.build().map_err(|error| describe(&error))?;
        client.get_async_connection().await.map_err(|error| describe(&error))
    }

    /// Asks the sentinels, one after the other, who the primary is.
    async fn primary(&self) -> Result<Address, KeeperError> {
        let Topology::Sentinel { master, sentinels } = &self.settings.topology else {
            return Err(away("there are no sentinels"));
        };
        // several are asked within one dial timeout, so that one that is gone does not use it up
        let each = self.settings.dial_timeout / (sentinels.len() as u32 + 1);
        let mut last = away("no sentinel is named");
        for sentinel in sentinels {
            match within(each, self.ask(sentinel, master)).await {
                Some(Ok(Some(address))) => return Ok(address),
                Some(Ok(None)) => {
                    let reason = format!("the sentinels know no primary by the name of {master}");
                    last = unusable(reason, "SENTINEL MASTERS on a sentinel lists the names");
                }
                Some(Err(error)) => last = error,
                None => last = away(format!("no answer from the sentinel at {sentinel} in time")),
            }
        }
        Err(last)
    }

    async fn ask(&self, sentinel: &Address, master: &str) -> Result<Option<Address>, KeeperError> {
        let login = &self.settings.sentinel_login;
        let answer: RedisResult<Option<(String, u16)>> = async {
            let client = self.client(sentinel, login, 0, ProtocolVersion::RESP2)?;
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&self.config()).await?;
            let mut cmd = redis::cmd("SENTINEL");
            cmd.arg("get-master-addr-by-name").arg(master).query_async(&mut connection).await
        }
        .await;
        let answer = answer.map_err(|error| at(sentinel, describe(&error)))?;
        Ok(answer.map(|(host, port)| Address { host, port }))
    }

    fn client(
        &self,
        address: &Address,
        login: &Login,
        database: u16,
        protocol: ProtocolVersion,
    ) -> RedisResult<Client> {
        let mut handshake = RedisConnectionInfo::default()
            .set_db(i64::from(database))
            .set_protocol(protocol)
            .set_skip_set_lib_name();
        if let Some(user) = &login.user {
            handshake = handshake.set_username(user);
        }
        if let Some(password) = &login.password {
            handshake = handshake.set_password(password);
        }
        let info = self.address(address).set_redis_settings(handshake);
        match &self.certificates {
            Some(certificates) => Client::build_with_tls(info, certificates.clone()),
            None => Client::open(info),
        }
    }

    fn address(&self, address: &Address) -> ConnectionInfo {
        let (host, port) = (address.host.clone(), address.port);
        let address = if self.settings.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        match address.into_connection_info() {
            Ok(info) => info.set_tcp_settings(tcp(&self.settings)),
            Err(_) => unreachable!("an address is always connection info"),
        }
    }

    fn config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.settings.dial_timeout))
            .set_response_timeout(Some(self.settings.response_timeout()))
    }

    /// For errors.
    fn whereabouts(&self) -> String {
        let list = |addresses: &[Address]| {
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        match &self.settings.topology {
            Topology::One(address) => address.to_string(),
            Topology::Cluster(nodes) => format!("the cluster of {}", list(nodes)),
            Topology::Sentinel { master, sentinels } => {
                format!("{master} by way of the sentinels {}", list(sentinels))
            }
        }
    }
}

/// Small messages go at once, and what is sent to a host that is gone fails.
fn tcp(settings: &RedisSettings) -> TcpSettings {
    let tcp = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(settings.dial_timeout + settings.write_timeout);
    #[cfg(not(target_os = "linux"))]
    let _ = settings;
    tcp
}
