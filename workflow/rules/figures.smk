# Notebooks, run by papermill. The executed notebook is a log: it stays when a cell fails,
# while the figures, which are outputs, go.

for notebook, made in NOTEBOOKS.items():

    rule:
        name:
            f"notebook_{notebook}"
        input:
            runs=rules.collect.output.runs,
            metrics=rules.collect.output.metrics,
            memory=rules.memory.output,
            steps=rules.memory_steps.output,
            more=further_tables(notebook),
            gradients=GRADIENTS if notebook == "gradients" else [],
            elsewhere=rules.elsewhere.output if ELSEWHERE else [],
            figlib=files("notebooks/figlib/**/*.py"),
            notebook=f"notebooks/{notebook}.ipynb",
        output:
            made,
        log:
            notebook=f"{RESULTS}/notebooks/{notebook}.ipynb",
            text=f"{RESULTS}/logs/notebooks/{notebook}.log",
        benchmark:
            f"{RESULTS}/benchmarks/notebooks/{notebook}.tsv"
        conda:
            "../../environment.yml"
        resources:
            mem_mb=4000,
            runtime=60,
        params:
            suite=SUITE,
            tables=subpath(input.runs, parent=True),
        message:
            f"Notebook: {notebook}"
        shell:
            "JUPYTER_PREFER_ENV_PATH=1 python -m papermill"
            " {input.notebook} {log.notebook} --cwd notebooks --no-progress-bar"
            ' -p suite {params.suite} -p tables "$PWD/{params.tables}"'
            ' -p bundles "$PWD/paper_figures" > {log.text} 2>&1'
