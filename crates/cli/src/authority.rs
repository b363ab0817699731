//! `firstflight authority`: this user's development authority, and who trusts it.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use firstflight_certificates::authority::stores::{
    self, Kind, Place, Plan, SearchPaths, StepError,
};
use firstflight_certificates::authority::{
    Authority, DOMAINS, NETWORKS, believed, directory, remove,
};
use firstflight_tls::Trust;
use nix::unistd::geteuid;
use serde_json::{Value, json};

/// Show this user's development authority, and install it in browsers and the system.
///
/// It signs certificates for `serve` and `try` if none is configured, only for names and addresses
/// of this machine or a private network; `fetch` and `bench` trust it automatically. It is stored
/// in firstflight/authority in $XDG_DATA_HOME or ~/.local/share; only its user can read the key
/// (docs/development.md).
#[derive(Args)]
pub(crate) struct AuthorityArgs {
    #[command(subcommand)]
    command: Option<AuthorityCommand>,

    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum AuthorityCommand {
    /// Show the authority, and who trusts it (default).
    Show,
    /// Install it in the system, Chromium and Firefox, where present.
    Trust(StoreArgs),
    /// Remove it from all of them.
    Untrust(StoreArgs),
    /// Remove it from all of them, and delete the authority and its key.
    Remove(StoreArgs),
}

#[derive(Args, Default)]
struct StoreArgs {
    /// Only there; may be repeated. Default: everywhere
    #[arg(long, value_name = "STORE")]
    only: Vec<Store>,

    /// Print the commands that do the same, and do nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Store {
    System,
    Chromium,
    Firefox,
}

/// Does what is asked.
///
/// # Errors
/// Why the authority is of no use.
pub(crate) fn run(args: AuthorityArgs) -> anyhow::Result<ExitCode> {
    let home = directory()?;
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
    match args.command.unwrap_or(AuthorityCommand::Show) {
        AuthorityCommand::Show => show(Authority::open(&home, now)?.as_ref(), &home, args.json),
        AuthorityCommand::Trust(only) => {
            let authority = match only.dry_run {
                false => Authority::open_or_make(&home, now)?,
                true => Authority::open(&home, now)?.ok_or_else(|| {
                    anyhow::anyhow!("there is no authority yet; without --dry-run one is made")
                })?,
            };
            let (name, certificate) = (authority.name(), authority.certificate());
            let rows = at_each(&only, |place| stores::trust(place, name, certificate));
            Ok(tell(&rows, ["believes it already", "believes it now"], args.json))
        }
        AuthorityCommand::Untrust(only) => {
            let rows = take_back(&home, now, &only);
            Ok(tell(&rows, UNKNOWN, args.json))
        }
        AuthorityCommand::Remove(only) => {
            let rows = take_back(&home, now, &only);
            let code = tell(&rows, UNKNOWN, args.json);
            for path in [home.join("authority.key"), home.join("authority.pem")] {
                if only.dry_run && path.exists() {
                    println!("rm {}", path.display());
                }
            }
            if !only.dry_run {
                let gone = remove(&home)?;
                gone.iter().filter(|_| !args.json).for_each(|path| {
                    println!("{} is removed", path.display());
                });
            }
            Ok(code)
        }
    }
}

/// The machine's authorities, and this user's unless it is `left_out` or there is none. One that is
/// there and of no use is left out with a sentence about it.
pub(crate) fn default_trust(left_out: bool) -> (Trust, Option<String>) {
    if left_out {
        return (Trust::System, None);
    }
    // Without a home there is none.
    let Ok(home) = directory() else { return (Trust::System, None) };
    match believed(&home) {
        Ok(Some(certificate)) => (Trust::SystemAnd(certificate), None),
        Ok(None) => (Trust::System, None),
        Err(error) => {
            (Trust::System, Some(format!("the development authority is left out: {error}")))
        }
    }
}

/// One that is damaged is known by its kind of name, and all of ours go.
fn take_back(home: &Path, now: u64, only: &StoreArgs) -> Vec<Row> {
    let authority = Authority::open(home, now).ok().flatten();
    let name = authority.as_ref().map(Authority::name);
    at_each(only, |place| stores::untrust(place, name))
}

/// What became of a place.
struct Row {
    place: Place,
    outcome: Outcome,
    commands: Vec<String>,
}

enum Outcome {
    /// It was as it should be.
    Already,
    /// The steps were taken.
    Done,
    /// They were to be shown alone.
    Planned,
    /// Only root may take them.
    NeedsRoot,
    Failed(StepError),
}

fn at_each(only: &StoreArgs, plan: impl Fn(&Place) -> Result<Plan, StepError>) -> Vec<Row> {
    let places = stores::places(&SearchPaths::from_environment()).into_iter();
    let wanted = |place: &Place| only.only.is_empty() || only.only.contains(&store(place.kind));
    let row = |place: Place| {
        let (outcome, commands) = match plan(&place) {
            Ok(plan) => (carry_out(&plan, only.dry_run), commands(&plan)),
            Err(error) => (Outcome::Failed(error), Vec::new()),
        };
        Row { place, outcome, commands }
    };
    places.filter(wanted).map(row).collect()
}

fn carry_out(plan: &Plan, dry_run: bool) -> Outcome {
    if plan.steps.is_empty() {
        return Outcome::Already;
    }
    if dry_run {
        return Outcome::Planned;
    }
    if plan.as_root && !geteuid().is_root() {
        return Outcome::NeedsRoot;
    }
    match plan.steps.iter().try_for_each(stores::Step::take) {
        Ok(()) => Outcome::Done,
        Err(error) => Outcome::Failed(error),
    }
}

fn commands(plan: &Plan) -> Vec<String> {
    let sudo = if plan.as_root && !geteuid().is_root() { "sudo " } else { "" };
    plan.steps.iter().map(|step| format!("{sudo}{step}")).collect()
}

fn store(kind: Kind) -> Store {
    match kind {
        Kind::System => Store::System,
        Kind::Chromium => Store::Chromium,
        Kind::Firefox => Store::Firefox,
    }
}

fn label(kind: Kind) -> &'static str {
    match kind {
        Kind::System => "system",
        Kind::Chromium => "chromium",
        Kind::Firefox => "firefox",
    }
}

/// What is said of a store that was, or now is, without it.
const UNKNOWN: [&str; 2] = ["does not know it", "does not know it any more"];

/// Prints what was done, and what is left to do. `words`: for what was so already, and is so now.
/// 1: something failed, or nothing is as it should be.
fn tell(rows: &[Row], words: [&str; 2], as_json: bool) -> ExitCode {
    match as_json {
        true => println!("{:#}", rows.iter().map(as_value).collect::<Value>()),
        false if rows.is_empty() => {
            println!("neither the system's store nor a browser was found: there is nothing to do");
        }
        false => rows.iter().for_each(|row| print!("{}", as_text(row, words))),
    }
    let failed = rows.iter().any(|row| matches!(row.outcome, Outcome::Failed(_)));
    let undone = rows.iter().all(|row| matches!(row.outcome, Outcome::NeedsRoot));
    let bad = failed || (undone && !rows.is_empty());
    if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn as_text(row: &Row, [already, now]: [&str; 2]) -> String {
    let place = format!("{:<9} {}", label(row.place.kind), row.place.path.display());
    let listed = || row.commands.iter().map(|line| format!("  {line}\n")).collect::<String>();
    match &row.outcome {
        Outcome::Already => format!("{place}: {already}\n"),
        Outcome::Done => {
            let again = match row.place.kind {
                Kind::System => "",
                Kind::Chromium | Kind::Firefox => "; start the browser again if it runs",
            };
            format!("{place}: {now}{again}\n")
        }
        Outcome::Planned => format!("# {place}\n{}", listed().replace("\n  ", "\n").trim_start()),
        Outcome::NeedsRoot => format!("{place}: needs root, run\n{}", listed()),
        Outcome::Failed(error) => format!("{place}: {error}\n"),
    }
}

fn as_value(row: &Row) -> Value {
    let (outcome, reason) = match &row.outcome {
        Outcome::Already => ("already", None),
        Outcome::Done => ("done", None),
        Outcome::Planned => ("planned", None),
        Outcome::NeedsRoot => ("needs root", None),
        Outcome::Failed(error) => ("failed", Some(error.to_string())),
    };
    json!({
        "store": row.place.kind,
        "path": row.place.path,
        "outcome": outcome,
        "reason": reason,
        "commands": row.commands,
    })
}

/// Prints the authority, and who trusts it.
fn show(authority: Option<&Authority>, home: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let Some(authority) = authority else {
        match as_json {
            true => println!("{:#}", json!({ "directory": home, "name": null })),
            false => println!(
                "There is no development authority in {} yet.\n`firstflight try`, `firstflight \
                 serve` without a certificate or `firstflight authority trust` makes one.",
                home.display()
            ),
        }
        return Ok(ExitCode::SUCCESS);
    };
    let believers: Vec<(Place, Result<bool, StepError>)> =
        stores::places(&SearchPaths::from_environment())
            .into_iter()
            .map(|place| {
                let word = stores::believes(&place, authority.name(), authority.certificate());
                (place, word)
            })
            .collect();
    let seconds = i64::try_from(authority.expires()).unwrap_or(i64::MAX);
    let expires = jiff::Timestamp::from_second(seconds)?.strftime("%Y-%m-%d").to_string();
    match as_json {
        true => println!("{:#}", shown_as_value(authority, &expires, &believers)),
        false => print!("{}", shown_as_text(authority, &expires, &believers)),
    }
    Ok(ExitCode::SUCCESS)
}

type TrustStatus = (Place, Result<bool, StepError>);

fn shown_as_value(authority: &Authority, expires: &str, believers: &[TrustStatus]) -> Value {
    let believer = |(place, word): &TrustStatus| {
        json!({
            "store": place.kind,
            "path": place.path,
            "believes": word.as_ref().ok(),
            "reason": word.as_ref().err().map(ToString::to_string),
        })
    };
    json!({
        "name": authority.name(),
        "certificate": authority.certificate(),
        "expires": expires,
        "domains": DOMAINS,
        "networks": networks(),
        "stores": believers.iter().map(believer).collect::<Value>(),
    })
}

fn shown_as_text(authority: &Authority, expires: &str, believers: &[TrustStatus]) -> String {
    let mut text = format!(
        "{}, until {expires}\n{}\n\nvouches for {} and names below them,\nand for {}\n\n",
        authority.name(),
        authority.certificate().display(),
        DOMAINS.join(", "),
        networks().join(", "),
    );
    for (place, word) in believers {
        let word = match word {
            Ok(true) => "believes it".to_owned(),
            Ok(false) => "does not know it".to_owned(),
            Err(error) => error.to_string(),
        };
        text += &format!("{:<9} {}: {word}\n", label(place.kind), place.path.display());
    }
    text += "firstflight fetch and bench: believe it\n";
    text
}

fn networks() -> Vec<String> {
    NETWORKS.iter().map(|(network, length)| format!("{network}/{length}")).collect()
}
