"""Skills: folders with a ``SKILL.md`` whose instructions a model loads when it needs them."""

from toolnexus.tools.skills.model import Skill, SkillDef, SkillInventory, SkillSkip
from toolnexus.tools.skills.source import SkillSet, list_skills, load_skills

__all__ = ["Skill", "SkillDef", "SkillInventory", "SkillSet", "SkillSkip", "list_skills", "load_skills"]
