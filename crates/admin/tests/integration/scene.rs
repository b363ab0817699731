//! A simulated server, with the metrics and state that a test or a picture needs.

use std::sync::{Arc, Mutex};

use firstflight_admin::{
    EarlyDataState, KeyRingState, KeyState, Moment, Replay, ServerState, Source, State,
};
use firstflight_telemetry::metrics::{Metrics, Readings, RegisterReading, Snapshot};

/// A source whose parts can be set.
#[derive(Clone, Default)]
pub(crate) struct Scene(Arc<Parts>);

#[derive(Default)]
struct Parts {
    metrics: Metrics,
    readings: Mutex<Readings>,
    state: Mutex<State>,
}

impl Scene {
    /// A server without any connections yet.
    pub(crate) fn quiet() -> Self {
        let scene = Self::default();
        *scene.0.state.lock().unwrap() = quiet(Moment::now());
        scene.readings(|readings| {
            readings.early_data_open = true;
            readings.register.capacity = 1 << 20;
        });
        scene
    }

    /// The counters.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Changes the readings.
    pub(crate) fn readings(&self, change: impl FnOnce(&mut Readings)) {
        change(&mut self.0.readings.lock().unwrap());
    }

    /// Changes the state.
    pub(crate) fn state(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.state.lock().unwrap());
    }

    /// Adds copies of a flight; of a new one if `new` is set.
    pub(crate) fn replayed(&self, networks: &[&str], transport: &str, copies: u64, new: bool) {
        self.state(|state| {
            let (first_at, last_at) = (Moment::now(), Moment::now());
            if new || state.replays.is_empty() {
                let networks = networks.iter().map(|network| (*network).to_owned()).collect();
                let transport = transport.to_owned();
                let replay = Replay { first_at, last_at, copies, networks, transport };
                state.replays.insert(0, replay);
                state.replays.truncate(50);
            } else {
                state.replays[0].last_at = last_at;
                state.replays[0].copies += copies;
            }
        });
    }
}

impl Source for Scene {
    fn readiness(&self) -> Result<(), String> {
        let state = self.0.state.lock().unwrap();
        match &state.server.not_ready_because {
            Some(why) => Err(why.clone()),
            None => Ok(()),
        }
    }

    fn metrics(&self) -> Snapshot {
        self.0.metrics.snapshot(&self.0.readings.lock().unwrap())
    }

    fn state(&self) -> State {
        self.0.state.lock().unwrap().clone()
    }
}

fn quiet(now: Moment) -> State {
    let key = |name: &str, state: &str, hours: i64, used: bool| KeyState {
        name: name.repeat(4),
        state: state.to_owned(),
        current_from: Moment(now.0 + hours * 3600),
        last_sealed: (used && state == "current").then_some(now),
        last_opened: used.then_some(now),
    };
    State {
        certificates: Vec::new(),
        server: ServerState {
            version: "0.1.0".to_owned(),
            host: "edge-1.example.test".to_owned(),
            pid: 4242,
            addresses: vec!["0.0.0.0:443".to_owned(), "[::]:443".to_owned()],
            ready: true,
            started_at: Moment(now.0 - 9 * 86_400),
            generation: 3,
            loaded_at: Moment(now.0 - 2 * 86_400),
            ..ServerState::default()
        },
        early_data: EarlyDataState { enabled: true, closed_because: None },
        keys: KeyRingState {
            source: "file".to_owned(),
            zone: Some("eu-west".to_owned()),
            period_seconds: 12 * 3600,
            lifetime_seconds: 24 * 3600,
            warnings: Vec::new(),
            ring: vec![
                key("a41f09c2", "previous", -27, true),
                key("07be51d8", "previous", -15, true),
                key("e93c7a10", "current", -3, true),
                key("5d2286fb", "next", 9, false),
            ],
        },
        replays: Vec::new(),
    }
}

/// A register with this many records.
pub(crate) fn filled(records: u64) -> RegisterReading {
    RegisterReading { records, capacity: 1 << 20, ..RegisterReading::default() }
}
