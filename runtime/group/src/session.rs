//! A rank's session: the thread that runs the protocol, and the calls of its owner.

use crate::connection::{Connection, Incoming};
use crate::meet::{self, Met};
use crate::{Config, MeetError};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tokio::time::{MissedTickBehavior, interval, timeout};
use warpline_ranks::{
    Call, Failure, Hub, Made, Member, Number, Rank, Refusal, Sequence, TICK, ToHub, ToMember, decode, encode,
};

/// The longest time for which a thread that ends waits until its last messages are queued, and
/// then until the other sides have closed their connections.
pub const FAREWELL: Duration = Duration::from_secs(5);

/// One rank of a group that is connected to the others.
///
/// Dropping it without [`close`](Session::close) ends the group on all ranks.
pub struct Session {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

struct Shared {
    start: Instant,
    member: Mutex<Member>,
    /// True if the rank is to leave as soon as its calls are settled.
    leaves: AtomicBool,
    /// Wakes the thread, which sends the member's messages.
    news: Notify,
}

impl Shared {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Session {
    /// Listens as rank 0, and returns when all other ranks have arrived.
    ///
    /// `on_change` is called on the thread of the session, when the [limit](Session::limit) has
    /// grown or the group has failed. It must not wait.
    ///
    /// # Errors
    /// If ranks are missing when the time is over. They are named, on all ranks that have arrived.
    pub fn host(
        listener: TcpListener,
        config: Config,
        on_change: impl Fn() + Send + 'static,
    ) -> Result<Session, MeetError> {
        if config.rank != 0 {
            let rank = config.rank;
            return Err(MeetError::Unusable(format!("rank {rank} cannot listen; rank 0 does")));
        }
        let unusable = |error: std::io::Error| {
            MeetError::Unusable(format!("the listener of rank 0 is unusable: {error}"))
        };
        Session::start(config, on_change, async move |config| {
            listener.set_nonblocking(true).map_err(unusable)?;
            meet::host(tokio::net::TcpListener::from_std(listener).map_err(unusable)?, config).await
        })
    }

    /// Connects to rank 0, and returns when all ranks have arrived there. Rank 0 may start later.
    /// `on_change` is that of [`host`](Session::host).
    ///
    /// # Errors
    /// If rank 0 does not answer in time, refuses this rank, or says that others are missing.
    pub fn join(config: Config, on_change: impl Fn() + Send + 'static) -> Result<Session, MeetError> {
        if config.rank == 0 {
            return Err(MeetError::Unusable("rank 0 cannot connect to itself; it listens".into()));
        }
        Session::start(config, on_change, async |config| Ok(BTreeMap::from([(0, meet::join(config).await?)])))
    }

    fn start(
        config: Config,
        on_change: impl Fn() + Send + 'static,
        meet: impl AsyncFnOnce(&Config) -> Result<BTreeMap<Rank, Met>, MeetError> + Send + 'static,
    ) -> Result<Session, MeetError> {
        config.ensure_usable()?;
        let (result, met) = channel();
        let (end, ended) = channel();
        let run = move || {
            let _end: Sender<()> = end;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => {
                    let why = format!("the thread of the group cannot start: {error}");
                    return drop(result.send(Err(MeetError::Unusable(why))));
                }
            };
            runtime.block_on(async move {
                match meet(&config).await {
                    Ok(met) => {
                        let runner = Runner::new(&config, met, on_change);
                        let _ = result.send(Ok(Arc::clone(&runner.shared)));
                        runner.run().await;
                    }
                    Err(error) => drop(result.send(Err(error))),
                }
            });
        };
        let thread = std::thread::Builder::new().name("warpline-group".into()).spawn(run);
        let thread =
            thread.map_err(|error| MeetError::Unusable(format!("the group has no thread: {error}")))?;
        let panicked = Err(MeetError::Unusable("the thread of the group has panicked".into()));
        let shared = met.recv().unwrap_or(panicked)?;
        Ok(Session { shared, thread: Some(thread), ended })
    }

    /// Notes a call of this rank, and returns its number. The engine may get it when the
    /// [limit](Session::limit) has reached it.
    ///
    /// # Errors
    /// If the group has failed, or has no such rank as the call names.
    pub fn call(&self, call: Call, site: &'static Location<'static>) -> Result<Number, Refusal> {
        let number = self.shared.member.lock().call(self.shared.now(), call, site)?;
        self.shared.news.notify_one();
        Ok(number)
    }

    /// Returns the position up to which the engine may get the calls of a sequence. It never
    /// shrinks.
    pub fn limit(&self, sequence: Sequence) -> u64 {
        self.shared.member.lock().limit(sequence)
    }

    /// Returns the failure that ended the group.
    pub fn failure(&self) -> Option<Arc<Failure>> {
        self.shared.member.lock().failure().cloned()
    }

    /// Asks rank 0 why a call takes longer than the deadline. See [`Member::late`].
    pub fn late(&self, number: Number, made: Made, waited: Duration, deadline: Duration) {
        self.shared.member.lock().late(self.shared.now(), number, made, waited, deadline);
        self.shared.news.notify_one();
    }

    /// Announces that this rank will make no calls for a time.
    pub fn pause(&self, time: Duration) {
        self.shared.member.lock().pause(self.shared.now(), time);
        self.shared.news.notify_one();
    }

    /// Ends the group, here immediately and on the other ranks when they learn of it.
    pub fn abort(&self, reason: impl Into<String>) {
        self.shared.member.lock().abort(self.shared.now(), reason.into());
        self.shared.news.notify_one();
    }

    /// Leaves the group: waits until the calls of this rank are compared and, on rank 0, until all
    /// ranks have left.
    ///
    /// # Errors
    /// If the group has failed before, or the wait takes longer than `within`. Then the group ends
    /// on all ranks.
    pub fn close(mut self, within: Duration) -> Result<(), Arc<Failure>> {
        self.shared.leaves.store(true, Ordering::Release);
        self.shared.news.notify_one();
        let thread = self.thread.take().expect("only this call takes it");
        // The other end is dropped when the thread ends.
        if let Err(RecvTimeoutError::Timeout) = self.ended.recv_timeout(within) {
            self.abort(format!("it has waited for {:.1} s to leave the group", within.as_secs_f64()));
        }
        // The thread ends within `FAREWELL`. If it has panicked, the group has failed.
        let _ = thread.join();
        self.failure().map_or(Ok(()), Err)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.abort("its group was dropped");
        }
    }
}

/// Fails the group if its thread panics, for example in the callback of the owner.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.member.lock().abort(self.0.now(), "the thread of the group has panicked".into());
        }
    }
}

/// The thread of a session.
struct Runner<F> {
    shared: Arc<Shared>,
    hub: Option<Hub>,
    /// By rank: on rank 0 those of all other ranks, else that of rank 0.
    connections: BTreeMap<Rank, Connection>,
    incoming: mpsc::Receiver<Incoming>,
    has_left: bool,
    /// The time at which this rank had left or failed.
    over_since: Option<Instant>,
    on_change: F,
}

/// The lines that wait for the thread. Readers wait beyond.
const INCOMING: usize = 1024;

impl<F: Fn()> Runner<F> {
    fn new(config: &Config, met: BTreeMap<Rank, Met>, on_change: F) -> Runner<F> {
        let &Config { rank, size, check, .. } = config;
        let (events, incoming) = mpsc::channel(INCOMING);
        let now = Duration::ZERO;
        let mut hub = (rank == 0).then(|| Hub::new(size, now));
        if let Some(hub) = &mut hub {
            let gone = (1..size).filter(|rank| !met.contains_key(rank));
            gone.for_each(|rank| hub.lost(rank, "its connection has ended".into()));
        }
        let start =
            |(rank, Met { stream, read })| (rank, Connection::start(stream, read, rank, events.clone()));
        let shared = Shared {
            start: Instant::now(),
            member: Mutex::new(Member::new(rank, size, check, now)),
            leaves: AtomicBool::new(false),
            news: Notify::new(),
        };
        let connections = met.into_iter().map(start).collect();
        Runner {
            shared: Arc::new(shared),
            hub,
            connections,
            incoming,
            has_left: false,
            over_since: None,
            on_change,
        }
    }

    async fn run(mut self) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_tick = Instant::now();
        let shared = Arc::clone(&self.shared);
        let _guard = Guard(Arc::clone(&shared));
        let mut was_skipped = false;
        loop {
            self.leave_if_settled();
            self.send_all();
            if self.is_over() {
                break;
            }
            tokio::select! {
                // Ticks first: messages may arrive all the time.
                biased;
                _ = ticks.tick() => {
                    for _ in 0..INCOMING {
                        let Ok(incoming) = self.incoming.try_recv() else { break };
                        self.take(incoming);
                    }
                    was_skipped = !was_skipped && last_tick.elapsed() > 3 * TICK;
                    if !was_skipped {
                        self.tick();
                    }
                    last_tick = Instant::now();
                }
                Some(incoming) = self.incoming.recv() => self.take(incoming),
                () = shared.news.notified() => {}
            }
        }
        if self.shared.member.lock().failure().is_some() {
            // The failure may be this rank's own.
            (self.on_change)();
        }
        self.connections.values_mut().for_each(Connection::finish);
        // A connection that is closed with unread bytes may lose what it has sent. So this side
        // reads until the other one has closed too.
        let farewell = async {
            while !self.connections.is_empty()
                && let Some(Incoming { rank, line }) = self.incoming.recv().await
            {
                if line.is_err() {
                    self.connections.remove(&rank);
                }
            }
        };
        let _ = timeout(FAREWELL, farewell).await;
    }

    fn is_over(&mut self) -> bool {
        let member = self.shared.member.lock();
        let has_ended = || self.has_left || member.failure().is_some();
        if !self.hub.as_ref().map_or_else(has_ended, Hub::is_over) {
            return false;
        }
        // Its last messages may have to wait for room.
        let since = *self.over_since.get_or_insert_with(Instant::now);
        member.is_quiet() || since.elapsed() > FAREWELL
    }

    fn leave_if_settled(&mut self) {
        if self.has_left || !self.shared.leaves.load(Ordering::Acquire) {
            return;
        }
        let mut member = self.shared.member.lock();
        if member.unsettled().is_none() {
            member.leave(self.shared.now());
            self.has_left = true;
        }
    }

    fn tick(&mut self) {
        let now = self.shared.now();
        let has_failed = {
            let mut member = self.shared.member.lock();
            let had_failed = member.failure().is_some();
            member.tick(now);
            !had_failed && member.failure().is_some()
        };
        if let Some(hub) = &mut self.hub {
            hub.tick(now);
        }
        if has_failed {
            (self.on_change)();
        }
    }

    /// Takes a line of another rank, or the end of its connection.
    fn take(&mut self, Incoming { rank, line }: Incoming) {
        let now = self.shared.now();
        if let Some(hub) = &mut self.hub {
            match line.and_then(|line| decode(&line).map_err(not_a_message)) {
                Ok(message) => hub.receive(now, rank, message),
                Err(why) => {
                    hub.lost(rank, why);
                    self.connections.remove(&rank);
                }
            }
            return;
        }
        match line.and_then(|line| decode(&line).map_err(not_a_message)) {
            Ok(message) => self.receive(now, message),
            Err(why) => self.lose_hub(why),
        }
    }

    fn receive(&self, now: Duration, message: ToMember) {
        let is_news = matches!(message, ToMember::Agreed { .. } | ToMember::Failed(_));
        self.shared.member.lock().receive(now, message);
        if is_news {
            (self.on_change)();
        }
    }

    fn lose_hub(&self, why: String) {
        self.shared.member.lock().hub_lost(why);
        (self.on_change)();
    }

    /// Sends the messages of the member and the hub, until there are no more.
    fn send_all(&mut self) {
        let now = self.shared.now();
        loop {
            // A message without room waits in the member, until a tick at the latest. Its windows
            // limit that.
            let has_room = self.hub.is_some() || self.connections.get(&0).is_none_or(Connection::has_room);
            let message = if has_room { self.shared.member.lock().next_message() } else { None };
            if let Some(message) = message {
                self.send_to_hub(now, message);
                continue;
            }
            let Some((rank, message)) = self.hub.as_mut().and_then(Hub::next_message) else { return };
            if rank == 0 {
                self.receive(now, message);
            } else if let Some(connection) = self.connections.get(&rank)
                && let Err(why) = connection.send(encode(&message))
            {
                self.connections.remove(&rank);
                self.hub.iter_mut().for_each(|hub| hub.lost(rank, why.clone()));
            }
        }
    }

    fn send_to_hub(&mut self, now: Duration, message: ToHub) {
        if let Some(hub) = &mut self.hub {
            hub.receive(now, 0, message);
        } else if let Some(connection) = self.connections.get(&0)
            && let Err(why) = connection.send(encode(&message))
        {
            self.lose_hub(why);
        }
    }
}

fn not_a_message(error: String) -> String {
    format!("it sent something else than a message: {error}")
}
