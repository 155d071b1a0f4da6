# One run: pretraining or fine-tuning by its task.


# A run's id holds a hash of everything that decides its result; hence `ancient`: editing
# labels or resources in a specification trains nothing again. Checkpoints and live metrics
# lie in work/, which Snakemake does not know: a killed job goes on from there.
rule train:
    input:
        spec=ancient(f"{SPEC}/runs/{{run}}.yaml"),
        data=manifest_of,
        needs=needed_models,
    output:
        f"{RESULTS}/runs/{{run}}/run.yaml",
        f"{RESULTS}/runs/{{run}}/metrics.jsonl",
        f"{RESULTS}/runs/{{run}}/summary.json",
        f"{RESULTS}/runs/{{run}}/provenance.json",
    log:
        f"{RESULTS}/logs/train/{{run}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/train/{{run}}.tsv"
    conda:
        "../../environment.yml"
    threads: lambda wildcards: cores_of(run_of(wildcards))
    resources:
        gpu=lambda wildcards: run_of(wildcards)["gpus"],
        mem_mb=lambda wildcards: run_of(wildcards)["mem_mb"],
        runtime=lambda wildcards: run_of(wildcards)["runtime_min"],
    params:
        start=lambda wildcards: launcher(run_of(wildcards)),
        task=lambda wildcards: run_of(wildcards)["task"],
        # what the run needs, where `resources` is what Snakemake can give
        gpus=lambda wildcards: run_of(wildcards)["gpus"],
        folder=subpath(output[0], parent=True),
        work=f"{RESULTS}/work/{{run}}",
        data=subpath(input.data, parent=True),
    message:
        "Train: {wildcards.run}"
    shell:
        "python -m experiments.lease --gpus {params.gpus} -- {params.start}"
        " experiments.{params.task} {input.spec} {params.folder}"
        " --data {params.data} --work {params.work} >> {log} 2>&1"


# The model of a run from which others start, or that somebody asks for by this file's name.
rule export_model:
    input:
        summary=f"{RESULTS}/runs/{{run}}/summary.json",
        data=manifest_of,
    output:
        f"{RESULTS}/runs/{{run}}/model/config.json",
    log:
        f"{RESULTS}/logs/export/{{run}}.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        run=subpath(input.summary, parent=True),
        work=f"{RESULTS}/work/{{run}}",
        data=subpath(input.data, parent=True),
    message:
        "Model: {wildcards.run}"
    shell:
        "python -m experiments.export {params.run}"
        " --work {params.work} --data {params.data} > {log} 2>&1"
