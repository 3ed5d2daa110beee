//! A relay between a member and its keeper. Each direction can be cut: what is
//! sent meanwhile is delivered when it heals, as TCP does with a broken path. Or
//! the keeper is moved: then all connections end.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    to: SocketAddr,
    requests: bool,
    answers: bool,
    stopped: bool,
}

/// What does not get through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Nothing,
    Requests,
    Answers,
    Both,
}

pub struct Relay {
    pub address: SocketAddr,
    state: Arc<watch::Sender<State>>,
}

impl Relay {
    pub fn start(to: SocketAddr) -> Self {
        let open = State { to, requests: true, answers: true, stopped: false };
        let state = Arc::new(watch::Sender::new(open));
        let (ready, address) = std::sync::mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let (runtime, theirs) = (runtime.expect("a runtime"), state.clone());
        std::thread::spawn(move || {
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                ready.send(listener.local_addr().expect("an address")).expect("someone waits");
                serve(listener, theirs).await;
            });
        });
        Self { address: address.recv().expect("the relay has begun"), state }
    }

    pub fn cut(&self, cut: Cut) {
        self.state.send_modify(|state| {
            state.requests = matches!(cut, Cut::Nothing | Cut::Answers);
            state.answers = matches!(cut, Cut::Nothing | Cut::Requests);
        });
    }

    /// From here on connections go to another server.
    pub fn lead_to(&self, to: SocketAddr) {
        self.state.send_modify(|state| state.to = to);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.send_modify(|state| state.stopped = true);
    }
}

async fn serve(listener: TcpListener, state: Arc<watch::Sender<State>>) {
    let mut stopped = state.subscribe();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stopped.wait_for(|state| state.stopped) => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else { continue };
        tokio::spawn(pass(stream, state.subscribe()));
    }
}

async fn pass(member: TcpStream, state: watch::Receiver<State>) {
    let to = state.borrow().to;
    let mut moved = state.clone();
    let Ok(keeper) = TcpStream::connect(to).await else { return };
    drop((member.set_nodelay(true), keeper.set_nodelay(true)));
    let (from_member, to_member) = member.into_split();
    let (from_keeper, to_keeper) = keeper.into_split();
    tokio::select! {
        () = forward(from_member, to_keeper, state.clone(), |state| state.requests) => {}
        () = forward(from_keeper, to_member, state, |state| state.answers) => {}
        _ = moved.wait_for(|state| state.to != to) => {}
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut into: OwnedWriteHalf,
    mut state: watch::Receiver<State>,
    gets_through: fn(&State) -> bool,
) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let Ok(n @ 1..) = from.read(&mut bytes).await else { return };
        if state.wait_for(gets_through).await.is_err() || into.write_all(&bytes[..n]).await.is_err()
        {
            return;
        }
    }
}
