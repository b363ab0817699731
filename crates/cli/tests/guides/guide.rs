//! Parses guides: which commands to run, on which machines, with which output.

use crate::output::Output;

/// A parsed guide.
pub(crate) struct Guide {
    pub(crate) name: String,
    /// The names of its machines.
    pub(crate) machines: Vec<String>,
    /// Whether the machines can reach Let's Encrypt.
    pub(crate) lets_encrypt: bool,
    pub(crate) blocks: Vec<Block>,
}

/// A block of commands.
pub(crate) struct Block {
    /// Line number of the fence, from 1.
    pub(crate) line: usize,
    pub(crate) script: String,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    Run {
        /// Indices of the machines, in order.
        on: Vec<usize>,
        output: Option<Output>,
    },
    /// Files in root's home that the reader copies from machine to machine.
    Carry { files: Vec<String>, from: usize, to: Vec<usize> },
    /// Not run in tests, for a reason.
    NotRun(String),
}

impl Guide {
    /// # Errors
    /// The line, and what is wrong with it.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, String> {
        let mut guide = Self {
            name: name.to_owned(),
            machines: Vec::new(),
            lets_encrypt: false,
            blocks: Vec::new(),
        };
        let mut comments = BlockComments::default();
        let mut lines = (1..).zip(text.lines());
        while let Some((number, line)) = lines.next() {
            if let Some(comment) = line.strip_prefix("<!-- ") {
                let comment = comment.strip_suffix(" -->");
                let comment = comment.ok_or(format!("{number}: a comment without its end"))?;
                guide
                    .take(number, comment, &mut comments)
                    .map_err(|why| format!("{number}: {why}"))?;
            } else if let Some(language) = line.strip_prefix("```") {
                let fenced: Vec<_> = lines
                    .by_ref()
                    .map(|(_, line)| line)
                    .take_while(|&line| line != "```")
                    .collect();
                match language {
                    "sh" => {
                        guide.blocks.push(comments.block(number, &fenced, guide.machines.len())?)
                    }
                    "text" if comments.after_commands => guide.expect(&fenced, &comments.differ),
                    _ => {}
                }
                comments =
                    BlockComments { after_commands: language == "sh", ..BlockComments::default() };
            } else if !line.is_empty() {
                comments.after_commands = false;
            }
        }
        if guide.machines.is_empty() {
            guide.machines.push("server".to_owned());
        }
        if guide.blocks.is_empty() {
            return Err("1: no commands".to_owned());
        }
        Ok(guide)
    }

    /// Lines of the blocks that are not run, with the reasons.
    pub(crate) fn left_out(&self) -> impl Iterator<Item = (usize, &str)> {
        self.blocks.iter().filter_map(|block| match &block.kind {
            Kind::NotRun(reason) => Some((block.line, reason.as_str())),
            Kind::Run { .. } | Kind::Carry { .. } => None,
        })
    }

    fn take(
        &mut self,
        line: usize,
        comment: &str,
        comments: &mut BlockComments,
    ) -> Result<(), String> {
        let (what, rest) = comment.split_once(": ").unwrap_or((comment, ""));
        match what {
            "machines" if self.blocks.is_empty() => {
                self.machines = rest.split(' ').map(str::to_owned).collect();
            }
            "lets-encrypt" => self.lets_encrypt = true,
            "on" => comments.on = self.machine_indices(rest)?,
            "carry" => {
                let (files, machines) = rest.split_once(" from ").ok_or("from where?")?;
                let (from, to) = machines.split_once(" to ").ok_or("to where?")?;
                let &[from] = self.machine_indices(from)?.as_slice() else {
                    return Err("from which?".to_owned());
                };
                let files = files.split(' ').map(str::to_owned).collect();
                let kind = Kind::Carry { files, from, to: self.machine_indices(to)? };
                self.blocks.push(Block { line, script: String::new(), kind });
            }
            "not run" if !rest.is_empty() => comments.not_run = Some(rest.to_owned()),
            "may differ" => comments.differ = rest.split(' ').map(str::to_owned).collect(),
            _ => return Err(format!("what is `{comment}`?")),
        }
        Ok(())
    }

    /// The indices of machines by their names.
    fn machine_indices(&self, names: &str) -> Result<Vec<usize>, String> {
        let place = |name| self.machines.iter().position(|machine| machine == name);
        names.split(' ').map(|name| place(name).ok_or(format!("no machine {name}"))).collect()
    }

    fn expect(&mut self, lines: &[&str], differ: &[String]) {
        let last = self.blocks.last_mut();
        if let Some(Block { kind: Kind::Run { output, .. }, .. }) = last {
            *output = Some(Output::new(lines, differ));
        }
    }
}

/// Comments about the next block.
#[derive(Default)]
struct BlockComments {
    on: Vec<usize>,
    not_run: Option<String>,
    differ: Vec<String>,
    /// Whether only empty lines and comments follow the last block of commands.
    after_commands: bool,
}

impl BlockComments {
    fn block(&mut self, line: usize, script: &[&str], machines: usize) -> Result<Block, String> {
        let on = std::mem::take(&mut self.on);
        let kind = match self.not_run.take() {
            Some(reason) => Kind::NotRun(reason),
            None if on.is_empty() && machines > 1 => {
                return Err(format!("{line}: on which machine?"));
            }
            None => Kind::Run { on: if on.is_empty() { vec![0] } else { on }, output: None },
        };
        Ok(Block { line, script: script.join("\n"), kind })
    }
}

/// Tests of the parser.
pub(crate) fn rules() {
    let text = "# A\n<!-- machines: a b -->\n<!-- on: b a -->\n```sh\nx\ny\n```\n\n\
                <!-- may differ: 5 -->\n```text\nz 5\n```\n\n<!-- not run: no -->\n```sh\nw\n```\n\
                then\n```text\nq\n```\n";
    let guide = Guide::parse("g", text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(guide.machines, ["a", "b"]);
    assert_eq!((guide.blocks[0].line, guide.blocks[0].script.as_str()), (4, "x\ny"));
    let Kind::Run { on, output: Some(output) } = &guide.blocks[0].kind else { panic!("{text}") };
    assert_eq!(on, &[1, 0]);
    assert!(output.compare("z 7\n").is_ok());
    assert_eq!(guide.left_out().collect::<Vec<_>>(), [(15, "no")]);

    for (wrong, says) in [
        ("prose", "1: no commands"),
        ("<!-- on: c -->\n", "1: no machine c"),
        ("<!-- sometimes -->\n", "1: what is `sometimes`?"),
        ("<!-- machines: a b -->\n```sh\nx\n```\n", "2: on which machine?"),
    ] {
        assert_eq!(Guide::parse("g", wrong).err().as_deref(), Some(says));
    }
    // Text after prose is not the output of commands.
    let guide = Guide::parse("g", "```sh\nx\n```\nprose\n```text\ny\n```\n");
    let guide = guide.unwrap_or_else(|error| panic!("{error}"));
    assert!(matches!(guide.blocks[0].kind, Kind::Run { output: None, .. }));
}
