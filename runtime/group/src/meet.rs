//! The meeting of the ranks: rank 0 listens, and the others connect until it answers.

use crate::connection::read_line;
use crate::{Config, MeetError};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use warpline_ranks::{Arrival, Hello, Lines, Meeting, Rank, VERSION, Welcome, decode, encode};

/// The time that a connection has for its hello.
const GREETING: Duration = Duration::from_secs(5);

/// The connections that wait for their hello, beside one for each rank.
const STRANGERS: usize = 64;

/// The time between two attempts to reach rank 0, which may start later than the others.
const RETRY: Duration = Duration::from_millis(100);

/// The time that rank 0 has after the arrival, to say which ranks are missing.
const ANSWER: Duration = Duration::from_secs(2);

/// The time in which rank 0 still takes what is there when the time is over: it may have been
/// stopped.
const GRACE: Duration = Duration::from_millis(200);

/// The longest time of one attempt to connect. A name may have several addresses.
const ATTEMPT: Duration = Duration::from_secs(5);

/// A connection between two ranks, with the bytes that have been read.
pub(crate) struct Met {
    pub(crate) stream: TcpStream,
    pub(crate) read: Lines,
}

/// An event of a connection while the ranks meet.
enum Event {
    /// It says which rank it is, and waits for the answer.
    Hello(u64, Hello, oneshot::Sender<Welcome>),
    /// It has the answer that all ranks have arrived.
    Met(u64, Met),
    /// It has ended, after its hello.
    Ended(u64),
}

fn hello(config: &Config) -> Hello {
    let Config { rank, size, check, token, .. } = config;
    Hello { version: VERSION, token: token.clone(), rank: *rank, size: *size, check: *check }
}

/// Waits for all other ranks, and returns their connections by rank. One that has ended meanwhile
/// is missing there.
pub(crate) async fn host(listener: TcpListener, config: &Config) -> Result<BTreeMap<Rank, Met>, MeetError> {
    let mut meeting = Meeting::new(hello(config)).map_err(MeetError::Unusable)?;
    let mut until = after(config.arrival);
    let mut has_grace = true;
    let (events, mut news) = mpsc::channel(64);
    let mut tasks = JoinSet::new();
    // The oldest first.
    let mut greeting: VecDeque<(u64, AbortHandle)> = VecDeque::new();
    let mut arrived: BTreeMap<u64, (Rank, oneshot::Sender<Welcome>)> = BTreeMap::new();
    let mut numbers = 0..;
    let mut last_error = None;
    while !meeting.is_complete() {
        tokio::select! {
            // Ranks that have said their hello are no strangers any more.
            biased;
            Some(event) = news.recv() => match event {
                Event::Hello(number, hello, answer) => {
                    greeting.retain(|(other, _)| *other != number);
                    match meeting.arrive(number, &hello) {
                        Arrival::Arrived => {
                            arrived.insert(number, (hello.rank, answer));
                        }
                        Arrival::Refused(welcome) => drop(answer.send(welcome)),
                        Arrival::Stranger => drop(answer),
                    }
                }
                Event::Ended(number) => {
                    meeting.leave(number);
                    arrived.remove(&number);
                }
                Event::Met(..) => unreachable!("no connection has this answer yet"),
            },
            () = sleep_until(until), if has_grace => {
                (until, has_grace) = (after(GRACE), false);
            }
            () = sleep_until(until), if !has_grace => {
                let mut missing = meeting.missing();
                missing.refused.extend(last_error);
                greeting.iter().for_each(|(_, task)| task.abort());
                for (_, answer) in arrived.into_values() {
                    let _ = answer.send(Welcome::Missing(missing.clone()));
                }
                let _ = timeout(ANSWER, async { while tasks.join_next().await.is_some() {} }).await;
                return Err(MeetError::Missing { missing, arrival: config.arrival });
            }
            accepted = listener.accept() => {
                while tasks.try_join_next().is_some() {}
                greeting.retain(|(_, task)| !task.is_finished());
                if greeting.len() >= STRANGERS + config.size as usize || accepted.is_err() {
                    greeting.pop_front().inspect(|(_, task)| task.abort());
                }
                match accepted {
                    Ok((stream, _)) => {
                        let number = numbers.next().expect("there are enough numbers");
                        greeting.push_back((number, tasks.spawn(greet(number, stream, events.clone()))));
                        // It may say its hello before further connections make it leave.
                        tokio::task::yield_now().await;
                    }
                    // The process may have no more descriptors for a while.
                    Err(error) => {
                        last_error = Some(format!("a connection, since rank 0 cannot accept it: {error}"));
                        sleep(RETRY).await;
                    }
                }
            }
        }
    }
    let mut waiting: BTreeMap<u64, Rank> = BTreeMap::new();
    for (number, (rank, answer)) in arrived {
        if answer.send(Welcome::Complete).is_ok() {
            waiting.insert(number, rank);
        }
    }
    let mut met = BTreeMap::new();
    let collect = async {
        while !waiting.is_empty() {
            match news.recv().await.expect("this function has a sender") {
                Event::Met(number, connection) => {
                    waiting.remove(&number).map(|rank| met.insert(rank, connection));
                }
                Event::Ended(number) => drop(waiting.remove(&number)),
                Event::Hello(..) => {}
            }
        }
    };
    // Each task has less time than this.
    let _ = timeout(2 * ANSWER, collect).await;
    Ok(met)
}

/// Returns the time after this much more, or a time that no program reaches.
fn after(time: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + time.min(YEAR)
}

/// Reads the hello of a connection, and gives it the answer.
async fn greet(number: u64, mut stream: TcpStream, events: mpsc::Sender<Event>) {
    let mut read = Lines::default();
    // Small messages that wait for no others. Without it they are late, not wrong.
    let _ = stream.set_nodelay(true);
    let Ok(Ok(Some(line))) = timeout(GREETING, read_line(&mut stream, &mut read)).await else { return };
    let Ok(hello) = decode(&line) else { return };
    let (answer, mut welcome) = oneshot::channel();
    if events.send(Event::Hello(number, hello, answer)).await.is_err() {
        return;
    }
    // A rank says nothing before it has the answer.
    let welcome = tokio::select! {
        welcome = &mut welcome => welcome,
        _ = read_line(&mut stream, &mut read) => return drop(events.send(Event::Ended(number)).await),
    };
    let Ok(welcome) = welcome else { return };
    let is_written =
        timeout(ANSWER, stream.write_all(&encode(&welcome))).await.is_ok_and(|written| written.is_ok());
    if welcome == Welcome::Complete {
        let event = if is_written { Event::Met(number, Met { stream, read }) } else { Event::Ended(number) };
        let _ = events.send(event).await;
    }
}

/// Connects to rank 0, and waits until all ranks have arrived. An attempt that fails is repeated:
/// rank 0 may start later, or make room for others for a while.
pub(crate) async fn join(config: &Config) -> Result<Met, MeetError> {
    let (start, until) = (Instant::now(), after(config.arrival));
    loop {
        let why = match timeout_at(until.min(after(ATTEMPT)), connect(&config.address)).await {
            Err(_) => "nothing answers there".into(),
            Ok(Err(why)) => why,
            // Rank 0 waits from its own start, which was before.
            Ok(Ok(stream)) => {
                match timeout(config.arrival.saturating_add(GRACE + ANSWER), introduce(stream, config)).await
                {
                    Err(_) => "it has taken the connection, and says nothing".into(),
                    Ok(Err(why)) => why,
                    Ok(Ok((Welcome::Complete, met))) => return Ok(met),
                    Ok(Ok((Welcome::Refused(reason), _))) => return Err(MeetError::Refused(reason)),
                    Ok(Ok((Welcome::Missing(missing), _))) => {
                        return Err(MeetError::Missing { missing, arrival: config.arrival });
                    }
                }
            }
        };
        if Instant::now() + RETRY >= until {
            return Err(MeetError::NoHub { address: config.address.clone(), waited: start.elapsed(), why });
        }
        sleep(RETRY).await;
    }
}

async fn connect(address: &str) -> Result<TcpStream, String> {
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    // A port of the system's own choice may be chosen for this very socket.
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(own), Ok(other)) if own == other => Err("nothing listens there".into()),
        _ => Ok(stream),
    }
}

/// Says which rank this is, and returns the answer.
async fn introduce(mut stream: TcpStream, config: &Config) -> Result<(Welcome, Met), String> {
    let _ = stream.set_nodelay(true);
    let mut read = Lines::default();
    let lost = |error: std::io::Error| format!("the connection has failed: {error}");
    stream.write_all(&encode(&hello(config))).await.map_err(lost)?;
    let line = read_line(&mut stream, &mut read).await.map_err(lost)?;
    let line = line.ok_or("it closed the connection; do all ranks have the same token?")?;
    let welcome = decode(&line).map_err(|error| format!("another program answers there: {error}"))?;
    Ok((welcome, Met { stream, read }))
}
