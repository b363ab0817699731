//! `firstflight authority`: this user's development authority, and the stores that trust it.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use firstflight_certificates::authority::trust_stores::{
    self, Plan, SearchPaths, Step, StepError, StoreKind, TrustStore,
};
use firstflight_certificates::authority::{
    Authority, PERMITTED_DOMAINS, PERMITTED_NETWORKS, default_directory, remove, trust_anchor,
};
use firstflight_tls::Trust;
use nix::unistd::geteuid;
use serde_json::{Value, json};

/// Show this user's development authority, and install it in browsers and the system.
///
/// It signs certificates for `serve` and `try` if none is configured, only for names and addresses
/// of this machine or a private network; `fetch` and `bench` trust it automatically. It is stored
/// in firstflight/authority in $XDG_DATA_HOME or ~/.local/share; only its user can read the key
/// (docs/operate/certificates.md).
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
    /// Use only this store; may be repeated. Default: all.
    #[arg(long, value_name = "STORE")]
    only: Vec<Store>,

    /// Print the equivalent commands instead of running them.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Store {
    System,
    Chromium,
    Firefox,
}

/// Runs the subcommand.
///
/// # Errors
/// If the authority cannot be read or created.
pub(crate) fn run(args: AuthorityArgs) -> anyhow::Result<ExitCode> {
    let directory = default_directory()?;
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
    match args.command.unwrap_or(AuthorityCommand::Show) {
        AuthorityCommand::Show => {
            show(Authority::open(&directory, now)?.as_ref(), &directory, args.json)
        }
        AuthorityCommand::Trust(only) => {
            let authority = match only.dry_run {
                false => Authority::open_or_create(&directory, now)?,
                true => Authority::open(&directory, now)?.ok_or_else(|| {
                    anyhow::anyhow!(
                        "there is no authority yet; run this without --dry-run to create it"
                    )
                })?,
            };
            let (name, certificate) = (authority.name(), authority.certificate());
            let results =
                for_each_store(&only, |place| trust_stores::trust(place, name, certificate));
            Ok(print_results(&results, ["already trusts it", "now trusts it"], args.json))
        }
        AuthorityCommand::Untrust(only) => {
            let results = untrust_all(&directory, now, &only);
            Ok(print_results(&results, UNTRUSTED_TEXTS, args.json))
        }
        AuthorityCommand::Remove(only) => {
            let results = untrust_all(&directory, now, &only);
            let code = print_results(&results, UNTRUSTED_TEXTS, args.json);
            for path in [directory.join("authority.key"), directory.join("authority.pem")] {
                if only.dry_run && path.exists() {
                    outln!("rm {}", path.display());
                }
            }
            if !only.dry_run {
                let removed = remove(&directory)?;
                removed.iter().filter(|_| !args.json).for_each(|path| {
                    outln!("removed {}", path.display());
                });
            }
            Ok(code)
        }
    }
}

/// What `fetch` and `bench` trust by default: the system's authorities, and this user's development
/// authority unless `system_only` is set or there is none. One that cannot be used is reported in
/// the second value.
pub(crate) fn default_trust(system_only: bool) -> (Trust, Option<String>) {
    if system_only {
        return (Trust::System, None);
    }
    // Without a home directory there is no authority.
    let Ok(directory) = default_directory() else { return (Trust::System, None) };
    match trust_anchor(&directory) {
        Ok(Some(certificate)) => (Trust::SystemAnd(certificate), None),
        Ok(None) => (Trust::System, None),
        Err(error) => {
            (Trust::System, Some(format!("the development authority is not trusted: {error}")))
        }
    }
}

/// Removes the authority from the stores. If its file is damaged, its name is unknown, and all
/// development authorities of this program are removed.
fn untrust_all(directory: &Path, now: u64, args: &StoreArgs) -> Vec<StoreResult> {
    let authority = Authority::open(directory, now).ok().flatten();
    let name = authority.as_ref().map(Authority::name);
    for_each_store(args, |place| trust_stores::untrust(place, name))
}

/// What was done in a store.
struct StoreResult {
    place: TrustStore,
    outcome: Outcome,
    commands: Vec<String>,
}

enum Outcome {
    /// Nothing had to be done.
    Already,
    /// The steps were executed.
    Done,
    /// The steps are only printed (`--dry-run`).
    Planned,
    /// The steps need root.
    NeedsRoot,
    Failed(StepError),
}

fn for_each_store(
    args: &StoreArgs,
    plan: impl Fn(&TrustStore) -> Result<Plan, StepError>,
) -> Vec<StoreResult> {
    let places = trust_stores::find_stores(&SearchPaths::from_environment()).into_iter();
    let is_selected =
        |place: &TrustStore| args.only.is_empty() || args.only.contains(&store_of(place.kind));
    let process = |place: TrustStore| {
        let (outcome, commands) = match plan(&place) {
            Ok(plan) => (execute(&plan, args.dry_run), commands(&plan)),
            Err(error) => (Outcome::Failed(error), Vec::new()),
        };
        StoreResult { place, outcome, commands }
    };
    places.filter(is_selected).map(process).collect()
}

fn execute(plan: &Plan, dry_run: bool) -> Outcome {
    if plan.steps.is_empty() {
        return Outcome::Already;
    }
    if dry_run {
        return Outcome::Planned;
    }
    if plan.needs_root && !geteuid().is_root() {
        return Outcome::NeedsRoot;
    }
    match plan.steps.iter().try_for_each(Step::run) {
        Ok(()) => Outcome::Done,
        Err(error) => Outcome::Failed(error),
    }
}

fn commands(plan: &Plan) -> Vec<String> {
    let sudo = if plan.needs_root && !geteuid().is_root() { "sudo " } else { "" };
    plan.steps.iter().map(|step| format!("{sudo}{step}")).collect()
}

fn store_of(kind: StoreKind) -> Store {
    match kind {
        StoreKind::System => Store::System,
        StoreKind::Chromium => Store::Chromium,
        StoreKind::Firefox => Store::Firefox,
    }
}

fn store_name(kind: StoreKind) -> &'static str {
    match kind {
        StoreKind::System => "system",
        StoreKind::Chromium => "chromium",
        StoreKind::Firefox => "firefox",
    }
}

/// For a store that did not trust the authority, and for one that no longer does.
const UNTRUSTED_TEXTS: [&str; 2] = ["does not trust it", "no longer trusts it"];

/// Prints what was done, and what is left to do. `texts` describe a store that needed no change, and
/// one that was changed. The exit code is 1 if a step failed, or if all stores need root.
fn print_results(results: &[StoreResult], texts: [&str; 2], as_json: bool) -> ExitCode {
    match as_json {
        true => outln!("{:#}", results.iter().map(result_json).collect::<Value>()),
        false if results.is_empty() => {
            outln!("nothing to do: found neither the system's certificate store nor a browser");
        }
        false => results.iter().for_each(|result| out!("{}", result_text(result, texts))),
    }
    let failed = results.iter().any(|result| matches!(result.outcome, Outcome::Failed(_)));
    let all_need_root = results.iter().all(|result| matches!(result.outcome, Outcome::NeedsRoot));
    let failure = failed || (all_need_root && !results.is_empty());
    if failure { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn result_text(result: &StoreResult, [before, now]: [&str; 2]) -> String {
    let place = format!("{:<9} {}", store_name(result.place.kind), result.place.path.display());
    let command_lines =
        || result.commands.iter().map(|line| format!("  {line}\n")).collect::<String>();
    match &result.outcome {
        Outcome::Already => format!("{place}: {before}\n"),
        Outcome::Done => {
            let restart = match result.place.kind {
                StoreKind::System => "",
                StoreKind::Chromium | StoreKind::Firefox => {
                    "; restart the browser if it is running"
                }
            };
            format!("{place}: {now}{restart}\n")
        }
        Outcome::Planned => {
            format!("# {place}\n{}", command_lines().replace("\n  ", "\n").trim_start())
        }
        Outcome::NeedsRoot => format!("{place}: needs root; run\n{}", command_lines()),
        Outcome::Failed(error) => format!("{place}: {error}\n"),
    }
}

fn result_json(result: &StoreResult) -> Value {
    let (outcome, reason) = match &result.outcome {
        Outcome::Already => ("already", None),
        Outcome::Done => ("done", None),
        Outcome::Planned => ("planned", None),
        Outcome::NeedsRoot => ("needs root", None),
        Outcome::Failed(error) => ("failed", Some(error.to_string())),
    };
    json!({
        "store": result.place.kind,
        "path": result.place.path,
        "outcome": outcome,
        "reason": reason,
        "commands": result.commands,
    })
}

/// Prints the authority and the stores that trust it.
fn show(
    authority: Option<&Authority>,
    directory: &Path,
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    let Some(authority) = authority else {
        match as_json {
            true => outln!("{:#}", json!({ "directory": directory, "name": null })),
            false => outln!(
                "There is no development authority in {} yet.\n`firstflight try`, `firstflight \
                 serve` without a certificate or `firstflight authority trust` creates one.",
                directory.display()
            ),
        }
        return Ok(ExitCode::SUCCESS);
    };
    let statuses: Vec<TrustStatus> = trust_stores::find_stores(&SearchPaths::from_environment())
        .into_iter()
        .map(|place| {
            let trusted =
                trust_stores::is_trusted(&place, authority.name(), authority.certificate());
            (place, trusted)
        })
        .collect();
    let seconds = i64::try_from(authority.expires()).unwrap_or(i64::MAX);
    let expires = jiff::Timestamp::from_second(seconds)?.strftime("%Y-%m-%d").to_string();
    match as_json {
        true => outln!("{:#}", authority_json(authority, &expires, &statuses)),
        false => out!("{}", authority_text(authority, &expires, &statuses)),
    }
    Ok(ExitCode::SUCCESS)
}

type TrustStatus = (TrustStore, Result<bool, StepError>);

fn authority_json(authority: &Authority, expires: &str, statuses: &[TrustStatus]) -> Value {
    let status_json = |(place, trusted): &TrustStatus| {
        json!({
            "store": place.kind,
            "path": place.path,
            "trusts": trusted.as_ref().ok(),
            "reason": trusted.as_ref().err().map(ToString::to_string),
        })
    };
    json!({
        "name": authority.name(),
        "certificate": authority.certificate(),
        "expires": expires,
        "domains": PERMITTED_DOMAINS,
        "networks": networks(),
        "stores": statuses.iter().map(status_json).collect::<Value>(),
    })
}

fn authority_text(authority: &Authority, expires: &str, statuses: &[TrustStatus]) -> String {
    let mut text = format!(
        "{}, valid until {expires}\n{}\n\nsigns for {} and names below them,\nand for {}\n\n",
        authority.name(),
        authority.certificate().display(),
        PERMITTED_DOMAINS.join(", "),
        networks().join(", "),
    );
    for (place, trusted) in statuses {
        let trusted = match trusted {
            Ok(true) => "trusts it".to_owned(),
            Ok(false) => "does not trust it".to_owned(),
            Err(error) => error.to_string(),
        };
        text += &format!("{:<9} {}: {trusted}\n", store_name(place.kind), place.path.display());
    }
    text += "firstflight fetch and bench: trust it\n";
    text
}

fn networks() -> Vec<String> {
    PERMITTED_NETWORKS.iter().map(|(network, length)| format!("{network}/{length}")).collect()
}
